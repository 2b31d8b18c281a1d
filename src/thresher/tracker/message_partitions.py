"""Chooses the message partitions for redelivered messages: any that has a leader and did not fail recently.

Otherwise one unavailable partition would block all messages that are redelivered in the same transaction.
"""

import random
import time
from collections.abc import Callable, Mapping

# How long the list of leaders is cached, since partitions may be added or lose their leader. How long a partition that
# failed is avoided.
_KNOWN_SECONDS, _REST_SECONDS = 10.0, 30.0


class MessagePartitions:
    """For one thread. `ask` returns the leader of each partition, negative if it has none."""

    def __init__(self, ask: Callable[[], Mapping[int, int]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._monotonic = ask, monotonic
        self._leaders: Mapping[int, int] = {}
        self._known_until = float("-inf")
        self._resting: dict[int, float] = {}

    def choose(self) -> int:
        """Return a partition. If none is available, return any: the broker's error then says why."""
        now = self._monotonic()
        if now > self._known_until:
            self._leaders, self._known_until = self._ask(), now + _KNOWN_SECONDS
        led = [partition for partition, leader in self._leaders.items() if leader >= 0]
        fresh = [partition for partition in led if self._resting.get(partition, now) <= now]
        return random.choice(fresh or led or [*self._leaders])  # noqa: S311 - to spread messages

    def failed(self, partition: int) -> None:
        """Register that a record for this partition failed with a retryable error."""
        self._resting[partition] = self._monotonic() + _REST_SECONDS
        self._known_until = float("-inf")
