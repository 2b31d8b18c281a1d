"""Whether a consumer is a member of its group, judged by its statistics and its assignments.

librdkafka looks for a coordinator and rejoins for ever, and reports nothing. A competitor outside of its group never
gets the partition.
"""

import json
from collections.abc import Callable

from thresher.election.candidacy import JOINING

# During a rebalance, a member may be out of its group for seconds.
_REBALANCE_SECONDS = 15.0


class Membership:
    """The membership of one consumer. For the thread in which the client calls back."""

    def __init__(self, group: str, clock: Callable[[], float]) -> None:
        self.group, self._clock = group, clock
        self._joined = False
        # Since when the consumer is not in its group, as far as is known.
        self._out_since: float | None = clock()

    @property
    def trouble(self) -> str | None:
        """Why the consumer cannot get the partition; None if it is in its group."""
        if self._out_since is None:
            return None
        long = self._clock() - self._out_since > _REBALANCE_SECONDS
        if not self._joined:
            return f"it has not joined the group {self.group}" if long else JOINING
        return f"it is out of the group {self.group}" if long else None

    def assigned(self) -> None:
        """Record that the group has assigned partitions, or none."""
        self._joined, self._out_since = True, None

    def take_statistics(self, statistics: str) -> None:
        """Record the client's statistics."""
        group = json.loads(statistics).get("cgrp", {})
        if (group.get("state"), group.get("join_state")) == ("up", "steady"):
            self.assigned()
        elif self._out_since is None:
            self._out_since = self._clock()
