"""The tail's protocol, without any input or output: a generator of effects.

1. **Recover** as every carrier does: the term, `Init`, our claim, the term again; then the last committed record, whose
   dead changes are set aside again. Where that is another term's, or of another timeline, a record of our own says
   first what of it counts here. Only then the log is read: what the record covers is left out.
2. **Carry** batches exactly once, as the relay does: rows and the progress record in one Kafka transaction, which
   commits only once the settling of the one before is durable.
3. **Note**: while nothing is pending, a record without rows says from time to time how far the log may be forgotten.
   The server is told so only after that record is committed. After a record that names dead changes, once those are
   set aside, one that does not name them follows at once: nobody who replays them finds them again after a crash.

A crash between any two effects neither loses, repeats nor reorders for readers of committed records:
`tests/property/test_tail_property.py` tries all of them against a model.
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
    """A progress book that knows when a record without rows is worth while."""

    def wants_note(self) -> bool:
        """Whether a record without rows should be written now. It waits for nothing."""

    def inherits(self) -> bool:
        """Whether the last record is of another term or timeline, so that what counts of it is not recorded yet."""


class TailCarrier(Carrier):
    """Carries rows of the log, and writes records without rows."""

    def note(self) -> Generator[Effect, Any, bool]:
        """Commit a record without rows; return whether that was certain."""
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
    """Recover, and record in our own name what counts of the last record."""
    yield from carrier.recover()
    while progress.inherits():
        # If it was not certain, recovery has looked again.
        if (yield from carrier.note()):
            return


def protocol(me: ShardIdentity, rules: Rules, progress: NotingBook) -> Steps:
    """Yield what has to be done, for as long as there are batches to take."""
    carrier = TailCarrier(me, rules, progress)
    yield from _begin(carrier, progress)
    yield Recovered()
    while True:
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
