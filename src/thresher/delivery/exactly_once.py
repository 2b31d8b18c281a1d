"""The exactly-once protocol of one shard, without any input or output: a generator of effects.

1. **Recover** (`carrier`): the control row must have our term. `Init` fences the last owner and ends its transaction.
   The control row must still have our term, or the attempt ends and never calls `Init` again. Our claim to the shard
   must count: it has the id that the last owner wrote with (`claims`). The committed progress is read and settled.
   Only then is the first row read.
2. **Take** a batch; while there is none, open a transaction ahead of its rows. Rows of a missing topic are held, and
   set aside as dead once their grace is over.
3. **Publish**: `Begin`, `Produce`, `Flush`; `WriteProgress` only if nothing failed; `Commit` only once the previous
   transaction's settling is durable.
4. **Settle** the committed record's fates. Nothing else removes a row.
5. After a rejected transaction the producer is discarded: the shard recovers as at the start, and reads again. A
   missing topic is then left out of reads, and a row that the broker named is dead. If no row was named, the rows
   are tried by halves: only a row that fails alone is poison.
6. Rows that were taken and not sent stay in the table. Everything read after them is discarded, so that nothing
   overtakes them.

A crash between any two effects loses, repeats and reorders nothing for readers of committed records:
`tests/property/test_exactly_once_property.py` tries all of them against a model.
"""

from typing import Any

from thresher.delivery.batch import NOTHING_YET
from thresher.delivery.carrier import Carrier, ShardIdentity, Steps
from thresher.delivery.effects import AwaitSettled, CloseAhead, OpenAhead, Recovered, Take
from thresher.delivery.progress import ProgressBook
from thresher.delivery.rules import Rules


def protocol(me: ShardIdentity, rules: Rules, progress: ProgressBook) -> Steps:
    """Yield the effects of one attempt, until `Take` answers None."""
    carrier = Carrier(me, rules, progress)
    yield from carrier.recover()
    yield from carrier.gate.go_on((yield Recovered()))
    while True:
        yield from carrier.gate.tend()
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
