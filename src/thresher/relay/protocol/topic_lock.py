"""The protocol of one turn at a locked topic, without any input or output: a generator of effects.

1. **Recover**, unless this process held the lock last and everything is settled: the lock must be ours; `Init` fences
   the last holder's producer; the lock must still be ours, or we leave; then the topic's last committed progress is
   read and settled.
2. **Take** a batch of the topic's oldest rows, **publish** it as one Kafka transaction with its progress record, and
   **settle** it before the next one is taken. All of that is `Carrier.carry`.
3. Nothing more to take ends the turn: the topic is drained, its time is up, or it cannot be written to.

`ReadControl` reads the lock as well, and raises `LockLost` where another process has taken it. A crash between any two
effects neither loses, repeats nor reorders for readers of committed records: the next holder's recovery settles what
was committed, and its `Init` ends what was not.
"""

from dataclasses import dataclass
from typing import Any

from thresher.delivery.carrier import Carrier, Steps
from thresher.delivery.effects import AwaitSettled, Recovered, Take
from thresher.delivery.fate import FILTERED
from thresher.delivery.row import Record, RowList, Rows
from thresher.relay.protocol.progress import OutboxProgress


@dataclass
class TopicCarrier(Carrier):
    """Carries the rows of one topic. `compacting`: of the records of a key, only the newest is sent."""

    compacting: bool = False

    def _compacted(self, rows: Rows) -> Rows:
        return newest_of_each_key(rows) if self.compacting else rows


def newest_of_each_key(rows: Rows) -> Rows:
    """Return the rows with all but the newest record of each key filtered. Rows without a key are all sent.

    For the rows of one transaction: the newest is sent if the others are filtered, whatever happens.
    """
    kept = list(rows)
    seen: set[tuple[str, bytes]] = set()
    for place in range(len(kept) - 1, -1, -1):
        plan = kept[place].plan
        if not isinstance(plan, Record) or plan.key is None:
            continue
        if (plan.topic, plan.key) in seen:
            kept[place] = kept[place]._replace(plan=FILTERED)
        seen.add((plan.topic, plan.key))
    return RowList(kept)


class TopicProgress(OutboxProgress):
    """The progress of one lock. A database that was restored is settled by whoever joins first, for all locks."""

    def wants_horizon(self, records: Any) -> bool:
        """Whether more than the last record has to be settled: never, since a join has done that."""
        del records
        return False


def protocol(carrier: Carrier, *, recovered: bool) -> Steps:
    """Yield what has to be done for one turn. `recovered`: the last turn was ours too, and left nothing open."""
    if not recovered:
        yield from carrier.recover()
    yield Recovered()
    while (batch := (yield Take())) is not None:
        yield from carrier.carry(batch)
    yield AwaitSettled()
