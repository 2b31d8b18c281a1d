"""Topics whose rows wait, as the driver knows them from what its shards report; and what the log says of rows.

For one term. A shard that starts over holds nothing: what it held before, nobody would lift.
"""

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)


class HeldTopics:
    """Takes events in one thread; may be looked at from any other."""

    def __init__(self, relay: str) -> None:
        self._relay = relay
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
            case "dead":
                logger.warning(
                    "rows set aside: %d, the first is %d: %s",
                    fields["rows"],
                    fields["first"],
                    fields["why"],
                    extra=told,
                )
            case "gone":
                logger.warning(
                    "rows that were sent were gone before they were settled: %d; does somebody else empty the table?",
                    fields["rows"],
                    extra=told,
                )
            case "relaying":
                self._held = {**self._held, shard: {}}
            case _:
                logger.debug("shard %d: %s", shard, event)
