"""The exactly-once protocol of one shard, without any input or output: a generator of effects.

1. **Recover**: the control row's term must be ours; `Init` fences the last owner and ends its transaction; our claim
   to the shard must count; the term must still be ours, or we leave and never init again; then the committed progress
   is read and settled, all of its horizon if the database is not the incarnation it speaks of; only then the first row
   is read.
2. **Take** a batch; while there is none, open a transaction ahead. Rows whose topic is missing are held back or, after
   the grace, set aside.
3. **Publish**: `Begin`, `Produce`, `Flush`; only when nothing failed, `WriteProgress`; `Commit` only once the
   settling of the transaction before is durable.
4. **Settle** the committed record's fates. Nothing else removes a row.
5. After a rejection the producer is not used again: recover as at the start, and read anew. Then the topic that is not
   there is left out, the row that was named is set aside, or the rows are tried by halves: only one that fails alone is
   poison.
6. Rows that were taken and not sent go back: everything read meanwhile is forgotten, so that nothing overtakes them.

A crash between any two effects neither loses, repeats nor reorders for readers of committed records:
`tests/property/test_exactly_once_property.py` tries all of them against a model.
"""

from typing import Any

from thresher.delivery.batch import NOTHING_YET
from thresher.delivery.carrier import Carrier, ShardIdentity, Steps
from thresher.delivery.effects import AwaitSettled, CloseAhead, OpenAhead, Recovered, Take
from thresher.delivery.progress import ProgressBook
from thresher.delivery.rules import Rules


def protocol(me: ShardIdentity, rules: Rules, progress: ProgressBook) -> Steps:
    """Yield what has to be done, for as long as there are batches to take."""
    carrier = Carrier(me, rules, progress)
    yield from carrier.recover()
    yield Recovered()
    while True:
        batch: Any = yield Take()
        if batch is NOTHING_YET:
            if (yield OpenAhead()) is False:
                yield from carrier.start_over()
                continue
            batch = yield Take(wait=True)
        if batch is None:
            break
        if batch is NOTHING_YET:
            continue
        if batch.failing is not None:
            yield from carrier.wait_for_transform(batch.failing)
        else:
            yield from carrier.carry(batch)
    yield CloseAhead()
    yield AwaitSettled()
