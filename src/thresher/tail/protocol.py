"""The tail's protocol, without any input or output: a generator of effects.

1. **Recover** as every carrier does: check the term, `Init`, claim the partition, check the term again. Then find the
   last committed record, and write the dead changes that it names to the dead table again. If that record is of another
   term or timeline, first commit a record of our own with what still holds of it. Only then read the WAL, and skip what
   the record covers.
2. **Carry** batches exactly once, as the relay does: rows and progress record in one Kafka transaction. It commits only
   once the settling of the transaction before is durable.
3. **Note**: while nothing is pending, commit a record without rows from time to time. It says up to where the server
   may discard the WAL. The slot is confirmed only after that record is committed. Once the dead changes that a record
   names are in the dead table, a record that does not name them follows at once. So a dead row that an operator replays
   later does not appear again after a crash.

After a crash between any two effects, readers of committed records find nothing lost, repeated or reordered:
`tests/property/test_tail_property.py` tries every such crash against a model.
"""

from collections.abc import Generator
from typing import Any, Protocol

from thresher.delivery.batch import NOTHING_YET
from thresher.delivery.carrier import Carrier, ShardIdentity, Steps
from thresher.delivery.effects import AwaitSettled, Begin, CloseAhead, Effect, OpenAhead, Recovered, Take
from thresher.delivery.progress import ProgressBook
from thresher.delivery.row import RowList
from thresher.delivery.rules import Rules


class NotingBook(ProgressBook, Protocol):
    """A progress book that says when to write a record without rows."""

    def wants_note(self) -> bool:
        """Whether a record without rows should be written now. Does not block."""

    def inherits(self) -> bool:
        """Whether the last record is of another term or timeline. Then this term has to record what holds of it."""


class TailCarrier(Carrier):
    """Carries rows of the WAL, and writes records without rows."""

    def note(self) -> Generator[Effect, Any, bool]:
        """Commit a record without rows; return whether the commit is certain."""
        nothing = RowList()
        if (yield Begin()) is False:
            yield from self._rejected(nothing, ())
            return False
        progress = self.progress.record(self.number + 1, nothing, self.failures)
        return (yield from self._concluded(nothing, nothing, progress, ()))

    def carry(self, batch: Any) -> Generator[Effect, Any, bool]:
        """Bring the rows of a batch to their fates, or back to the buffer."""
        self.failures = batch.failures
        return (yield from super().carry(batch))


def _begin(carrier: TailCarrier, progress: NotingBook) -> Steps:
    """Recover, and record under our own term what still holds of the last record."""
    yield from carrier.recover()
    while progress.inherits():
        # If the commit was not certain, `note` has recovered again.
        if (yield from carrier.note()):
            return


def protocol(me: ShardIdentity, rules: Rules, progress: NotingBook) -> Steps:
    """Yield the effects, until there are no more batches to take."""
    carrier = TailCarrier(me, rules, progress)
    yield from _begin(carrier, progress)
    yield from carrier.gate.go_on((yield Recovered()))
    while True:
        yield from carrier.gate.tend()
        if progress.wants_note():
            yield from carrier.note()
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
    yield AwaitSettled()
    if progress.wants_note():
        yield from carrier.note()
    yield CloseAhead()
    yield AwaitSettled()
