"""Makes an attempt the owner of its shard, the only one that may write for it, before anything is read.

1. The control row must have our term, before a transactional id is fenced and after it. Otherwise the attempt ends, and
   never fences again.
2. `Init` fences the last owner of an id and ends its transaction. Our claim with that id must count (`claims`).
3. An id is blocked while a partition of its last transaction cannot be written to. Its holder may be alive, and go on
   once the partition heals. So only the holder itself moves to another id; every other attempt waits.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from thresher.core.errors import Superseded
from thresher.delivery.claims import IDS_PER_SHARD
from thresher.delivery.effects import Blocked, Control, Effect, Holder, Init, ReadControl, ReadHolder, WriteClaim
from thresher.kafka.problem import BrokerLost

# After more claims in a row whose commit is not certain, the attempt ends, and is started again after a pause.
_MAX_DOUBTS = 4


@dataclass
class Ownership:
    """The transactional id that an attempt writes with, and whether a claim of the attempt has counted."""

    outbox_id: str
    term: str
    id_index: int = 0
    holding: bool = False
    # Ids that the attempt has left because they were blocked.
    blocked: set[int] = field(default_factory=set)

    def take(self) -> Generator[Effect, Any, Control]:
        """Become the owner: fence all other attempts. Return the control row as read after that."""
        self.require_mine((yield ReadControl()))
        blocked_ids: set[int] = set()
        doubts = 0
        while True:
            blocked: Blocked | None = yield Init(self.id_index)
            if blocked is None:
                self.blocked.discard(self.id_index)
            control: Control = yield ReadControl()
            self.require_mine(control)
            if blocked is None and (yield WriteClaim()) is False:
                doubts += 1
                if doubts > _MAX_DOUBTS:
                    raise BrokerLost(f"{doubts} claims to the shard in a row may not have been committed")
                continue
            holder: Holder = yield ReadHolder()
            if blocked is None and holder == Holder(id_index=self.id_index, ours=True):
                self.holding = True
                return control
            if blocked is not None and holder.ours:
                blocked_ids.add(self.id_index)
                self.blocked.add(self.id_index)
                free = [id_index for id_index in range(IDS_PER_SHARD) if id_index not in blocked_ids]
                if not free:
                    raise BrokerLost(blocked.why)
                self.id_index = free[0]
            elif self.holding or holder.id_index == self.id_index:
                raise BrokerLost(blocked.why if blocked is not None else "another attempt has taken over this shard")
            else:
                self.id_index = holder.id_index

    def require_mine(self, control: Control | None) -> None:
        """Raise `Superseded` if the control row is gone, or belongs to another outbox or term."""
        if control is None or control.outbox_id != self.outbox_id:
            raise Superseded("the control row is not this relay's any more: somebody removed or replaced it")
        if control.term != self.term:
            raise Superseded("a newer relay of the same name has taken over; this one ends")
