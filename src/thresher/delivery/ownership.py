"""Makes an attempt the owner of its shard, the only one that may write for it, before anything is read.

1. The control row must have our term, before a lane is fenced and after it. Otherwise the attempt ends, and never
   fences again.
2. `Init` fences the last owner of a lane and ends its transaction. Our claim with that lane must count (`claims`).
3. A lane is blocked while a partition of its last transaction cannot be written to. Its holder may be alive, and go on
   once the partition heals. So only the holder itself moves to another lane; every other attempt waits.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from thresher.core.errors import Superseded
from thresher.delivery.claims import LANES
from thresher.delivery.effects import Blocked, Control, Effect, Holder, Init, ReadControl, ReadHolder, WriteClaim
from thresher.kafka.problem import BrokerLost

# After more claims in a row whose commit is not certain, the attempt ends, and is started again after a pause.
_MAX_DOUBTS = 4


@dataclass
class Ownership:
    """The lane that an attempt writes with, and whether a claim of the attempt has counted."""

    outbox_id: str
    term: str
    lane: int = 0
    holding: bool = False
    # Lanes that the attempt has left because they were blocked.
    blocked: set[int] = field(default_factory=set)

    def take(self) -> Generator[Effect, Any, Control]:
        """Become the owner: fence all other attempts. Return the control row as read after that."""
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
                if doubts > _MAX_DOUBTS:
                    raise BrokerLost(f"{doubts} claims to the shard in a row may not have been committed")
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
        """Raise `Superseded` if the control row is gone, or belongs to another outbox or term."""
        if control is None or control.outbox_id != self.outbox_id:
            raise Superseded("the control row is not this relay's any more: somebody removed or replaced it")
        if control.term != self.term:
            raise Superseded("a newer relay of the same name has taken over; this one ends")
