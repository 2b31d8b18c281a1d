"""Topics whose rows wait, as the driver knows them from what its shards report; and what the log says of rows.

For one term. A shard that starts over holds nothing: what it held before, nobody would lift.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

logger = logging.getLogger(__name__)

_SAY_SECONDS = 60.0


class HeldTopics:
    """Takes events in one thread; may be looked at from any other. `look` is the command that lists dead rows."""

    def __init__(
        self, relay: str, *, look: str = "thresher dead list", monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._relay, self._look, self._monotonic = relay, look, monotonic
        # By topic: when the log may next say that records were rejected, and how often they were since it last did.
        self._said: dict[str, tuple[float, int]] = {}
        # Topics and why their rows wait, by shard; replaced as a whole.
        self._held: dict[int, dict[str, str]] = {}

    @property
    def alarms(self) -> dict[str, str]:
        """Topics whose rows wait in one shard or more, and why."""
        return {topic: why for held in self._held.values() for topic, why in held.items()}

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of a shard."""
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
                # It is there for all of them: a shard without rows of it would never say so.
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
                    self._look,
                    extra=told,
                )
            case "gone":
                logger.warning(
                    "rows that were sent were gone before they were settled: %d; does somebody else empty the table?",
                    fields["rows"],
                    extra=told,
                )
            case "errored":
                self._say(fields["topic"], f"topic {fields['topic']} rests after an error: {fields['why']}", told)
            case "strangers":
                logger.warning(
                    "records of strangers on the progress topic were left out: %d; grant nobody else Write on it",
                    fields["records"],
                    extra=told,
                )
            case _:
                logger.debug("shard %d: %s", shard, event)

    def _say(self, about: str, text: str, told: Mapping[str, Any]) -> None:
        """Say something once a minute at most: poison, for one, is found by many rejections."""
        now = self._monotonic()
        due, unsaid = self._said.get(about, (now, 0))
        if now < due:
            self._said[about] = (due, unsaid + 1)
            return
        self._said[about] = (now + _SAY_SECONDS, 0)
        logger.warning("%s%s", text, f" ({unsaid} more since the last time)" if unsaid else "", extra=told)
