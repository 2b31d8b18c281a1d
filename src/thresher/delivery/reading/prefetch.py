"""Reads the next batches in a thread of its own, while the current one is published.

The thread also converts stored rows to records, while the publisher waits for the broker.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pyarrow as pa

from thresher.delivery.batch import Batch
from thresher.delivery.columns import integers
from thresher.delivery.reading.read_ahead import ReadAhead
from thresher.delivery.reading.row_source import ReadRequest, RowSource
from thresher.delivery.stored_rows import FewRows, StoredBatch, row_sizes, split

# After a slow read that found nothing, the pause is ten times as long, 1 s at most: the read stepped over many rows.
_LONG_LOOK_SECONDS, _SHARE_OF_LOOKING, _LONGEST_WAIT_SECONDS = 0.02, 0.1, 1.0
# While topics are held, the pause is at most this many times as long as the read.
_PAUSES_BESIDE_HELD = 2.0
# The pause grows with the time without rows: after about half a minute it is 50 times the poll interval.
_SHARE_OF_IDLENESS, _SLOWEST = 0.002, 50
# While few rows are in flight, reads pause: they would only take CPU time from publishing.
_FEW, _BUSY_SECONDS = 100, 0.003
_END_SECONDS = 2.0


def pause(looked_seconds: float, idle_seconds: float, poll_seconds: float) -> float:
    """Return the pause after a read that found nothing: longer after a slow read, and the longer no row has come."""
    if looked_seconds >= _LONG_LOOK_SECONDS:
        return min(looked_seconds / _SHARE_OF_LOOKING, _LONGEST_WAIT_SECONDS)
    return max(poll_seconds, min(idle_seconds * _SHARE_OF_IDLENESS, _SLOWEST * poll_seconds))


def every(seconds: float) -> Callable[[float, float, float], float]:
    """Return a replacement for `pause` with a fixed pause, for a sweeper."""
    return lambda *_: seconds


class Prefetch:
    """Reads ahead until it is closed. An error ends the reading, and is raised by `ReadAhead.take`."""

    def __init__(
        self,
        ahead: ReadAhead,
        open_source: Callable[[], RowSource],
        *,
        poll_seconds: float,
        convert: Callable[[StoredBatch], Batch] | None = None,
        step: AbstractContextManager[None] | None = None,
        waits: Callable[[float, float, float], float] = pause,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`convert` turns a stored batch into rows with records; None if transforms do it. `step` times each read.

        `waits` returns the pause after a read that found nothing, with the arguments of `pause`.
        """
        self._step = nullcontext() if step is None else step
        self._ahead, self._open_source, self._convert = ahead, open_source, convert
        self._poll, self._waits, self._clock = poll_seconds, waits, clock
        self._last_found = self._last_look = 0.0
        self._thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
        self._thread.start()

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Stop reading. A read that hangs is left behind after these seconds."""
        self._ahead.close()
        self._thread.join(seconds)

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
        rows, began = ahead.size.rows, self._clock()
        with self._step:
            read = source.read(request)
        if request.sweeping:
            self._swept(read, request)
            return
        if read is None:
            ahead.empty_reads += 1
            ended = self._clock()
            poll = max(self._poll, _BUSY_SECONDS) if request.in_flight else self._poll
            # The shorter of the last two reads counts: a stall of the machine makes one read slow, a slow database all.
            took, self._last_look = min(ended - began, self._last_look), ended - began
            wait = self._waits(took, ended - self._last_found, poll)
            # Reads step over rows that wait: that must not make the others slow as well.
            ahead.pause(min(wait, max(poll, _PAUSES_BESIDE_HELD * took)) if request.held else wait)
            return
        self._last_found = began
        found = self._claimed(read, request)
        ahead.size.row_size.learn(read.nbytes, len(found))
        for part in split(read, rows):
            self._give(StoredBatch(stored=part, generation=request.generation))
        if len(found) < _FEW:
            ahead.pause(_BUSY_SECONDS)

    def _swept(self, read: pa.RecordBatch | FewRows | None, request: ReadRequest) -> None:
        if read is None:
            self._ahead.holds.swept(request.held)
        else:
            self._claimed(read, request)
            self._give(StoredBatch(stored=read, generation=request.generation))

    def _claimed(self, read: pa.RecordBatch | FewRows, request: ReadRequest) -> dict[int, int]:
        found = versions(read)
        self._ahead.claim(found, request.generation, row_sizes(read) if self._ahead.by_bytes else ())
        return found

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
