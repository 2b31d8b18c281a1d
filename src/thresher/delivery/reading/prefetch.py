"""Reads the next batches in a thread of its own, while the one before them is published.

Stored rows become rows with records in this thread too: the publisher waits for a broker meanwhile, and none of its
time is spent on that.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa

from thresher.delivery.batch import Batch
from thresher.delivery.columns import integers
from thresher.delivery.reading.read_ahead import ReadAhead
from thresher.delivery.reading.row_source import RowSource
from thresher.delivery.stored_rows import FewRows, StoredBatch, row_sizes, split

# With many rows to step over, a look is not cheap: then there are fewer of them.
_LONG_LOOK_SECONDS, _SHARE_OF_LOOKING, _LONGEST_WAIT_SECONDS = 0.02, 0.1, 1.0
# A shard that had nothing for half a minute looks fifty times less often than one that is in use.
_SHARE_OF_IDLENESS, _SLOWEST = 0.002, 50
# While few rows are on their way no others can be, and looks would only take the processor from them.
_FEW, _BUSY_SECONDS = 100, 0.003


def pause(looked_seconds: float, idle_seconds: float, poll_seconds: float) -> float:
    """Return how long to wait after a look in vain: longer after a slow one, and the longer nothing has come."""
    if looked_seconds >= _LONG_LOOK_SECONDS:
        return min(looked_seconds / _SHARE_OF_LOOKING, _LONGEST_WAIT_SECONDS)
    return max(poll_seconds, min(idle_seconds * _SHARE_OF_IDLENESS, _SLOWEST * poll_seconds))


def every(seconds: float) -> Callable[[float, float, float], float]:
    """Return what waits so long after each look in vain: a sweeper's."""
    return lambda *_: seconds


class Prefetch:
    """Reads ahead until it is closed. An error ends it, and is raised where a batch is taken."""

    def __init__(
        self,
        ahead: ReadAhead,
        open_source: Callable[[], RowSource],
        *,
        poll_seconds: float,
        convert: Callable[[StoredBatch], Batch] | None = None,
        step: AbstractContextManager[None] | None = None,
        waits: Callable[[float, float, float], float] = pause,
    ) -> None:
        """`convert` makes rows of a stored batch where no transform looks at it. `step` is entered for each read.

        `waits` says how long to wait after a look in vain, by what `pause` is told.
        """
        self._step = nullcontext() if step is None else step
        self._ahead, self._open_source, self._convert = ahead, open_source, convert
        self._poll, self._waits = poll_seconds, waits
        self._last_found = self._last_look = 0.0
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._ahead.close()
        self._thread.join(2.0)

    def _run(self) -> None:
        try:
            with self._step:
                source = self._open_source()
            try:
                while not self._ahead.closed:
                    self._look(source)
            finally:
                source.close()
        except BaseException as error:  # noqa: BLE001 - raised again where a batch is taken
            self._ahead.fail(error)

    def _look(self, source: RowSource) -> None:
        ahead = self._ahead
        request = ahead.await_due()
        if request is None:
            return
        rows, began = ahead.size.rows, time.monotonic()
        with self._step:
            read = source.read(request)
        if read is None:
            ended = time.monotonic()
            poll = max(self._poll, _BUSY_SECONDS) if request.in_flight else self._poll
            # A machine that stalls makes one look long; a slow database makes all of them so.
            took, self._last_look = min(ended - began, self._last_look), ended - began
            ahead.pause(self._waits(took, ended - self._last_found, poll))
            return
        self._last_found = began
        found = versions(read)
        ahead.size.row_size.learn(read.nbytes, len(found))
        ahead.claim(found, request.generation, row_sizes(read) if ahead.by_bytes else ())
        for part in split(read, rows):
            self._give(StoredBatch(stored=part, generation=request.generation))
        if len(found) < _FEW:
            ahead.pause(_BUSY_SECONDS)

    def _give(self, batch: StoredBatch) -> None:
        if self._convert is None or batch.generation != self._ahead.generation:
            self._ahead.offer(batch)
        else:
            self._ahead.offer(self._convert(batch))


def versions(read: pa.RecordBatch | FewRows) -> dict[int, int]:
    """Return each row's create time in microseconds, by id."""
    if isinstance(read, FewRows):
        return dict(zip(read.ids, read.create_times, strict=True))
    return dict(zip(integers(read.column("id")), integers(read.column("create_time")), strict=True))
