"""How often and for how long a message is delivered: by its own limits, its queue's, or the default, in this order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from thresher.queue.configuration import QueueConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The maximum number of deliveries, and how long after the first Start the message is delivered; None: no limit."""

    max_deliveries: int | None = None
    ttl_ms: int | None = None

    def passed(self, *, deliveries: int, age_ms: int) -> "Passed | None":
        """Return the limit that a message with these deliveries, and this age since its first Start, has reached."""
        if self.max_deliveries is not None and deliveries >= self.max_deliveries:
            return Passed(
                "max_deliveries", f"it was delivered {deliveries} times, and max-deliveries is {self.max_deliveries}"
            )
        if self.ttl_ms is not None and age_ms >= self.ttl_ms:
            first, ttl = f"{age_ms / 1000:.1f}", f"{self.ttl_ms / 1000:g}"
            return Passed("ttl", f"it was started {first} s ago for the first time, and ttl is {ttl} s")
        return None

    def overridden(self, max_deliveries: int | None, ttl_ms: int | None) -> "Limit":
        """Return this limit with a message's or a queue's own values in place of the defaults."""
        if max_deliveries is None and ttl_ms is None:
            return self
        return Limit(max_deliveries=max_deliveries or self.max_deliveries, ttl_ms=ttl_ms or self.ttl_ms)


class Passed(NamedTuple):
    """A limit that a message has reached, and the reason for its dead letter."""

    kind: str
    reason: str


def limit_of_all(config: QueueConfig) -> Limit:
    """Return the default limit, for queues without their own."""
    return Limit(max_deliveries=config.max_deliveries, ttl_ms=config.ttl)


def limits_by_queue(config: QueueConfig) -> Mapping[bytes, Limit]:
    """Return the limits of the queues that have their own."""
    return {
        queue.encode(): limit_of_all(config).overridden(
            config.max_deliveries_by_queue.get(queue), config.ttl_by_queue.get(queue)
        )
        for queue in {*config.max_deliveries_by_queue, *config.ttl_by_queue}
    }
