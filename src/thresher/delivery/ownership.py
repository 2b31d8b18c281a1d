"""Becomes the one attempt that may write for a shard, before anything is read.

1. The control row's term must be ours, before a lane is fenced and after it: else we leave, and never fence again.
2. `Init` fences the last owner of a lane and ends its transaction. Our claim through that lane must count (`claims`).
3. A lane is blocked while a partition of its last transaction cannot be written to. Another attempt may hold it, and go
   on with it once it heals: so only the holder moves on to another lane, and everybody else waits.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from thresher.core.errors import Superseded
from thresher.delivery.claims import LANES
from thresher.delivery.effects import Blocked, Control, Effect, Holder, Init, ReadControl, ReadHolder, WriteClaim
from thresher.kafka.problem import BrokerLost

# So many claims in a row may be answered late: whoever starts the shard again waits before.
_MOST_DOUBTS = 4


@dataclass
class Ownership:
    """One attempt's: the lane that it writes with, and whether a claim of its own has counted."""

    outbox_id: str
    term: str
    lane: int = 0
    holding: bool = False
    # Lanes that it found blocked, and has left.
    blocked: set[int] = field(default_factory=set)

    def take(self) -> Generator[Effect, Any, Control]:
        """Fence everybody else, and return the control row as it is then."""
        self.require_mine((yield ReadControl()))
        blocked_lanes: set[int] = set()
        doubts = 0
        while True:
            blocked: Blocked | None = yield Init(self.lane)
            if blocked is None:
                self.blocked.discard(self.lane)
            control: Control = yield ReadControl()
            self.require_mine(control)
            if blocked is None and (yield WriteClaim()) is False:
                doubts += 1
                if doubts > _MOST_DOUBTS:
                    raise BrokerLost(f"{doubts} claims to the shard in a row were not certain")
                continue
            holder: Holder = yield ReadHolder()
            if blocked is None and holder == Holder(lane=self.lane, ours=True):
                self.holding = True
                return control
            if blocked is not None and holder.ours:
                blocked_lanes.add(self.lane)
                self.blocked.add(self.lane)
                free = [lane for lane in range(LANES) if lane not in blocked_lanes]
                if not free:
                    raise BrokerLost(blocked.why)
                self.lane = free[0]
            elif self.holding or holder.lane == self.lane:
                raise BrokerLost(blocked.why if blocked is not None else "another attempt has taken over this shard")
            else:
                self.lane = holder.lane

    def require_mine(self, control: Control | None) -> None:
        """Raise `Superseded` if the control row, as it is now, is another's."""
        if control is None or control.outbox_id != self.outbox_id:
            raise Superseded("the control row is not this relay's any more: somebody removed or replaced it")
        if control.term != self.term:
            raise Superseded("a newer relay of the same name has taken over; this one ends")
