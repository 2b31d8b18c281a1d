"""Whether a client is a member of its consumer group, by what it says of itself: its statistics and its assignments.

The client looks for a coordinator, and joins again, for ever and without a word. A competitor that is in no group will
never be given anything.
"""

import json
from collections.abc import Callable

from thresher.election.candidacy import JOINING

# A rebalance takes a member out of its group for seconds.
_REBALANCE_SECONDS = 15.0


class Membership:
    """One membership. For the thread in which the client calls back."""

    def __init__(self, group: str, clock: Callable[[], float]) -> None:
        self.group, self._clock = group, clock
        self._joined = False
        # Since when it is not in its group, as far as is known.
        self._out_since: float | None = clock()

    @property
    def trouble(self) -> str | None:
        """What keeps it from being given anything."""
        if self._out_since is None:
            return None
        long = self._clock() - self._out_since > _REBALANCE_SECONDS
        if not self._joined:
            return f"it has not joined the group {self.group}" if long else JOINING
        return f"it is out of the group {self.group}" if long else None

    def assigned(self) -> None:
        """Take in that the group has given it something, or nothing."""
        self._joined, self._out_since = True, None

    def told(self, statistics: str) -> None:
        """Take in what the client says of itself."""
        group = json.loads(statistics).get("cgrp", {})
        if (group.get("state"), group.get("join_state")) == ("up", "steady"):
            self.assigned()
        elif self._out_since is None:
            self._out_since = self._clock()
