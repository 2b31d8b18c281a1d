"""How often, and for how long, a message is delivered: by its own limits, else by its queue's, else by those of all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from thresher.queue.configuration import QueueConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The most deliveries of a message, and for how long after its first Start there are some; None: for ever."""

    max_deliveries: int | None = None
    ttl_ms: int | None = None

    def passed(self, *, deliveries: int, age_ms: int) -> "Passed | None":
        """Return which limit a message is past that was delivered so often, first so long ago."""
        if self.max_deliveries is not None and deliveries >= self.max_deliveries:
            return Passed(
                "max_deliveries", f"it was delivered {deliveries} times, and max-deliveries is {self.max_deliveries}"
            )
        if self.ttl_ms is not None and age_ms >= self.ttl_ms:
            first, ttl = f"{age_ms / 1000:.1f}", f"{self.ttl_ms / 1000:g}"
            return Passed("ttl", f"it was started {first} s ago for the first time, and ttl is {ttl} s")
        return None

    def overridden(self, max_deliveries: int | None, ttl_ms: int | None) -> "Limit":
        """Return the limit of a message that has limits of its own."""
        if max_deliveries is None and ttl_ms is None:
            return self
        return Limit(max_deliveries=max_deliveries or self.max_deliveries, ttl_ms=ttl_ms or self.ttl_ms)


class Passed(NamedTuple):
    """A limit that a message is past, and the reason of its dead letter."""

    kind: str
    reason: str


def limit_of_all(config: QueueConfig) -> Limit:
    """Return the limit of queues that have none of their own."""
    return Limit(max_deliveries=config.max_deliveries, ttl_ms=config.ttl)


def limits_by_queue(config: QueueConfig) -> Mapping[bytes, Limit]:
    """Return the limits of queues that have some of their own."""
    return {
        queue.encode(): limit_of_all(config).overridden(
            config.max_deliveries_by_queue.get(queue), config.ttl_by_queue.get(queue)
        )
        for queue in {*config.max_deliveries_by_queue, *config.ttl_by_queue}
    }
