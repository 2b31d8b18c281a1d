"""The partitions of the message topic that redelivered messages go to: any that has a leader and did not fail lately.

One partition that cannot be written to would else hold up all that is redelivered with it.
"""

import random
import time
from collections.abc import Callable, Mapping

# Partitions may be added or lose their leader: how long an answer is believed; and how long one that failed rests.
_KNOWN_SECONDS, _REST_SECONDS = 10.0, 30.0


class MessagePartitions:
    """For one thread. `ask` returns the leader of each partition, negative where there is none."""

    def __init__(self, ask: Callable[[], Mapping[int, int]], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._monotonic = ask, monotonic
        self._leaders: Mapping[int, int] = {}
        self._known_until = float("-inf")
        self._resting: dict[int, float] = {}

    def choose(self) -> int:
        """Return a partition. Where none can be written to, any: the broker says why."""
        now = self._monotonic()
        if now > self._known_until:
            self._leaders, self._known_until = self._ask(), now + _KNOWN_SECONDS
        led = [partition for partition, leader in self._leaders.items() if leader >= 0]
        fresh = [partition for partition in led if self._resting.get(partition, now) <= now]
        return random.choice(fresh or led or [*self._leaders])  # noqa: S311 - to spread messages

    def failed(self, partition: int) -> None:
        """Take in that a record for this partition failed, and may not the next time."""
        self._resting[partition] = self._monotonic() + _REST_SECONDS
        self._known_until = float("-inf")
