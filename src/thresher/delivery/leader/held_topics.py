"""Collects the topics whose rows wait from the events of the shards, and logs what the shards report about rows.

For one term. A shard that starts over holds no topics, so its earlier ones are dropped: no event would lift them.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger(__name__)

# The log repeats a message about a topic at most this often.
_REPEAT_SECONDS = 60.0


class HeldTopics:
    """Takes events in one thread; may be read from any other. `hint` is the command that lists dead rows."""

    def __init__(
        self, relay: str, *, hint: str = "thresher dead list", monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._relay, self._hint, self._monotonic = relay, hint, monotonic
        # By topic: when the next message may be logged, and how many were left out since the last one.
        self._said: dict[str, tuple[float, int]] = {}
        # By shard: topics, and why their rows wait. Replaced as a whole, for readers in other threads.
        self._held: dict[int, dict[str, str]] = {}

    @property
    def alarms(self) -> dict[str, str]:
        """Topics whose rows wait in one shard or more, and why."""
        return {topic: why for held in self._held.values() for topic, why in held.items()}

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Handle an event of a shard."""
        told = {"relay": self._relay, "shard": shard, **fields}
        match event:
            case "held":
                for topic in fields["topics"]:
                    if topic not in self.alarms:
                        logger.warning("rows of topic %s wait: %s", topic, fields["why"], extra=told)
                held = dict.fromkeys(fields["topics"], str(fields["why"]))
                self._held = {**self._held, shard: {**self._held.get(shard, {}), **held}}
            case "lifted":
                if (topic := fields["topic"]) in self.alarms:
                    logger.info("rows of topic %s go on", topic, extra=told)
                # Lifted for all shards: a shard that has no more rows of the topic would never report it.
                self._held = {
                    each: {name: why for name, why in held.items() if name != topic}
                    for each, held in self._held.items()
                }
            case "relaying":
                self._held = {**self._held, shard: {}}
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
                logger.warning(
                    "rows set aside: %d, the first is %d: %s; '%s' on its database shows them",
                    fields["rows"],
                    fields["first"],
                    fields["why"],
                    self._hint,
                    extra=told,
                )
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

    def _say(self, about: str, text: str, told: Mapping[str, Any]) -> None:
        """Log a message, at most once a minute per topic: finding a poison row alone takes many rejections."""
        now = self._monotonic()
        due, unsaid = self._said.get(about, (now, 0))
        if now < due:
            self._said[about] = (due, unsaid + 1)
            return
        self._said[about] = (now + _REPEAT_SECONDS, 0)
        logger.warning("%s%s", text, f" ({unsaid} more since the last time)" if unsaid else "", extra=told)
