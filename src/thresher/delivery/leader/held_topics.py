"""Collects the topics whose rows wait from the events of the shards, and logs what the shards report about rows.

A shard names at most 50 topics, and counts the rest. The log has a bounded number of lines a minute: about rejections
one for each topic, about rows set aside ten; further ones are counted.

For one term. A shard that starts over holds no topics, so its earlier ones are dropped: no event would lift them.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger(__name__)

# The log repeats a message about a topic at most this often.
_REPEAT_SECONDS = 60.0
# The most topics that are remembered for that.
_MOST_SAID = 1_000
# So many transactions with dead rows are logged in a minute; rows of others are counted.
_MOST_DEAD = 10


class HeldTopics:
    """Takes events in one thread; may be read from any other. `hint` is the command that lists dead rows."""

    def __init__(
        self, relay: str, *, hint: str = "thresher dead list", monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._relay, self._hint, self._monotonic = relay, hint, monotonic
        # By topic: when the next message may be logged, and how many were left out since the last one.
        self._said: dict[str, tuple[float, int]] = {}
        # When the minute of dead rows ends, how many lines it has had, and how many rows were left out of them.
        self._dead = (0.0, 0, 0)
        # By shard: topics, and why their rows wait. Replaced as a whole, for readers in other threads.
        self._held: dict[int, dict[str, str]] = {}
        # By shard: how many topics wait, named or not.
        self._of: dict[int, int] = {}

    @property
    def alarms(self) -> dict[str, str]:
        """Topics whose rows wait in one shard or more, and why; and how many topics wait that are not named."""
        held = self._held
        named = {topic: why for each in held.values() for topic, why in each.items()}
        more = sum(max(0, self._of.get(shard, 0) - len(each)) for shard, each in held.items())
        return {**named, f"{more:,} more topics": "their rows wait, too"} if more else named

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Handle an event of a shard."""
        told = {"relay": self._relay, "shard": shard, **fields}
        self._tell_left_out()
        match event:
            case "held":
                before = self.alarms
                held = {topic: str(why) for why, topics in fields["reasons"].items() for topic in topics}
                for topic, why in held.items():
                    if topic not in before:
                        extra = {"relay": self._relay, "shard": shard, "topics": list(held), "why": why}
                        logger.warning("rows of topic %s wait: %s", topic, why, extra=extra)
                self._of = {**self._of, shard: fields["of"]}
                self._held = {**self._held, shard: {**self._held.get(shard, {}), **held}}
            case "lifted":
                before = self.alarms
                for topic in fields["topics"]:
                    if topic in before:
                        logger.info("rows of topic %s go on", topic, extra=told)
                lifted = {
                    each: len(held.keys() & set(fields["topics"])) for each, held in self._held.items() if each != shard
                }
                self._of = {each: max(0, of - lifted.get(each, 0)) for each, of in self._of.items()}
                self._of[shard] = fields["of"]
                # Lifted for all shards: a shard that has no more rows of the topic would never report it.
                self._held = {
                    each: {name: why for name, why in held.items() if name not in fields["topics"]}
                    for each, held in self._held.items()
                }
            case "relaying":
                self._held, self._of = {**self._held, shard: {}}, {**self._of, shard: 0}
            case _:
                self._log(shard, event, fields, told)

    def _log(self, shard: int, event: str, fields: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        match event:
            case "rejected":
                for topic in fields["topics"]:
                    text = f"a transaction with {fields['records']} records was rejected, for topic {topic}"
                    self._say(topic, f"{text}: {fields['why']}", told)
            case "in doubt":
                self._say("", f"shard {shard} recovers: {fields['why']}", told)
            case "dead":
                self._tell_dead(fields, told)
            case "gone":
                logger.warning(
                    "rows that were sent were gone before they were settled: %d; does another program delete rows?",
                    fields["rows"],
                    extra=told,
                )
            case "errored":
                self._say(fields["topic"], f"topic {fields['topic']} rests after an error: {fields['why']}", told)
            case "strangers":
                logger.warning(
                    "records on the progress topic that this relay did not write were ignored: %d; grant nobody else "
                    "Write on it",
                    fields["records"],
                    extra=told,
                )
            case _:
                logger.debug("shard %d: %s", shard, event)

    def _tell_dead(self, fields: Mapping[str, Any], told: Mapping[str, Any]) -> None:
        until, lines, rows = self._dead
        if lines >= _MOST_DEAD:
            self._dead = (until, lines, rows + fields["rows"])
            return
        self._dead = (until if lines else self._monotonic() + _REPEAT_SECONDS, lines + 1, 0)
        logger.warning(
            "rows set aside: %d, the first is %d: %s; '%s' on its database shows them",
            fields["rows"],
            fields["first"],
            fields["why"],
            self._hint,
            extra=told,
        )

    def _tell_left_out(self) -> None:
        """Log how many dead rows were left out of the log, once their minute is over."""
        until, lines, rows = self._dead
        if lines and self._monotonic() >= until:
            self._dead = (0.0, 0, 0)
            if rows:
                text = "rows set aside: %d more since the last line; '%s' on its database shows them"
                logger.warning(text, rows, self._hint, extra={"relay": self._relay, "rows": rows})

    def _say(self, about: str, text: str, told: Mapping[str, Any]) -> None:
        """Log a message, at most once a minute per topic: finding a poison row alone takes many rejections."""
        now = self._monotonic()
        due, unsaid = self._said.get(about, (now, 0))
        if now < due:
            self._said[about] = (due, unsaid + 1)
            return
        self._said.pop(about, None)
        self._said[about] = (now + _REPEAT_SECONDS, 0)
        if len(self._said) > _MOST_SAID:
            del self._said[next(iter(self._said))]
        logger.warning("%s%s", text, f" ({unsaid} more since the last time)" if unsaid else "", extra=told)
