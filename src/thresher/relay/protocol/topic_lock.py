"""The protocol of one turn at a locked topic, without any input or output: a generator of effects.

1. **Recover**, unless this process held the lock last and everything is settled. The lock must be ours. `Init` fences
   the last holder's producer. The lock must still be ours, or the turn ends. Then the last committed progress record of
   the lock is read and settled.
2. **Take** a batch of the topic's oldest rows, **publish** it as one Kafka transaction with its progress record, and
   **settle** it before the next batch is taken. `Carrier.carry` does all of that.
3. The turn ends when `Take` answers None: the topic is drained, the turn's time is up, or the topic cannot be written
   to.

`ReadControl` also reads the lock, and raises `LockLost` if another process has taken it. A crash between any two
effects loses, repeats and reorders nothing for readers of committed records: the next holder's recovery settles a
committed transaction, and its `Init` ends an open one.
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
    """Publishes the rows of one topic. `compacting`: only the newest record of each key is sent."""

    compacting: bool = False

    def _compacted(self, rows: Rows) -> Rows:
        return newest_of_each_key(rows) if self.compacting else rows


def newest_of_each_key(rows: Rows) -> Rows:
    """Return the rows with all but the newest record of each key filtered. Rows without a key are all sent.

    For the rows of one transaction: it settles the newest and the filtered ones together or not at all.
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
    """The progress of one lock. After a restore of the database, the founder of the group settles all locks."""

    def wants_horizon(self, records: Any) -> bool:
        """Return False: the founder of the group has settled all records within the horizon."""
        del records
        return False


def protocol(carrier: Carrier, *, recovered: bool) -> Steps:
    """Yield the effects of one turn. `recovered`: the last turn was this process's too, and left nothing open."""
    if not recovered:
        yield from carrier.recover()
    yield Recovered()
    while (batch := (yield Take())) is not None:
        yield from carrier.carry(batch)
    yield AwaitSettled()
