"""State that the reader and the publisher of one attempt share: batches that are ready, rows in flight, holds.

A read leaves out the rows in flight and the held topics. When rows are left in the table to be read again, all that was
read before is discarded: the generation rises, and batches of an older generation are dropped.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from thresher.delivery.batch import Batch
from thresher.delivery.reading.batch_size import BatchSize
from thresher.delivery.reading.holds import Holds
from thresher.delivery.reading.row_source import Key, ReadRequest
from thresher.delivery.stored_rows import StoredBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAheadLimits:
    """How far ahead to read: the largest batch, and how many rows may be in flight when another read begins.

    Without `window_rows`, another read begins while at most about one batch is in flight. With it, at most
    `window_bytes` are in flight, except for a single larger row; another read begins when half of these bytes are
    settled.
    """

    most_rows: int
    most_bytes: int = 16_000_000
    window_rows: int | None = None
    window_bytes: int = 32_000_000


class ReadAhead:
    """Shared by the reader's thread and the task's own. Safe from both."""

    def __init__(self, ahead: ReadAheadLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = ahead
        # Topics, keys and rows that reads leave out.
        self.holds = Holds(clock=clock)
        self.size = BatchSize(most_rows=ahead.most_rows, most_bytes=ahead.most_bytes)
        self._changed = threading.Condition()
        self.generation = 0
        # How many reads found no row that may be sent now. Written by the reader only.
        self.empty_reads = 0
        # Create times in microseconds, by id.
        self._in_flight: dict[int, int] = {}
        # With a window: the bytes of each row in flight, by id, and of all together.
        self._sizes: dict[int, int] = {}
        self.bytes_in_flight = 0
        # Keys of which enough rows are marked already. The publisher replaces the tuple as a whole.
        self.hot: tuple[Key, ...] = ()
        self._ready: deque[Batch | StoredBatch] = deque()
        self._error: BaseException | None = None
        self._closed = False

    # For the publisher

    @property
    def ready(self) -> bool:
        """Whether `take` would return a batch, or raise, at once."""
        return bool(self._ready) or self._error is not None

    def is_current(self, batch: Batch) -> bool:
        """Whether the read-ahead was not discarded since the batch was read."""
        return batch.generation == self.generation

    def settled(self, ids: Iterable[int], create_times: Iterable[int]) -> None:
        """Note that these rows are durably settled: a read that begins now does not find them. For any thread."""
        with self._changed:
            in_flight = self._in_flight
            for id_, create_time in zip(ids, create_times, strict=True):
                # Another row with the same id may be in flight by now, after a TRUNCATE.
                if in_flight.get(id_) == create_time:
                    del in_flight[id_]
                    self.bytes_in_flight -= self._sizes.pop(id_, 0)
            self._changed.notify_all()

    def discard(self) -> None:
        """Forget the rows in flight and the batches that were read, so that all are read again from the head."""
        with self._changed:
            self.generation += 1
            self._in_flight.clear()
            self._sizes.clear()
            self.bytes_in_flight = 0
            self._ready.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """End the reading."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # For the reader

    def take(self, seconds: float) -> Batch | StoredBatch | None:
        """Return the next batch; None if there is none within the time. Raises the error that ended the reading."""
        with self._changed:
            self._changed.wait_for(lambda: self.ready, seconds)
            if self._error is not None:
                raise self._error
            batch = self._ready.popleft() if self._ready else None
            self._changed.notify_all()
        return batch

    @property
    def due(self) -> bool:
        """Whether to read now: no batch is ready, and few rows are in flight, because a read steps over all of them."""
        if self._ready:
            return False
        if self._limits.window_rows is None:
            return len(self._in_flight) <= max(self.size.first_rows, self.size.rows)
        return len(self._in_flight) < self._limits.window_rows and 2 * self.bytes_in_flight <= self._limits.window_bytes

    def await_due(self) -> ReadRequest | None:
        """Wait until another read is due, and return what to read; None once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.due)
            if self._closed:
                return None
            return self.holds.request(
                ReadRequest(
                    rows=self.size.rows,
                    bytes=self._most_bytes(),
                    in_flight=dict(self._in_flight),
                    generation=self.generation,
                )
            )

    @property
    def by_bytes(self) -> bool:
        """Whether `claim` needs the size of each row."""
        return self._limits.window_rows is not None

    def claim(self, rows: Mapping[int, int], generation: int, sizes: Sequence[int] = ()) -> None:
        """Note rows as in flight, create times by id, unless the read-ahead was discarded since they were read."""
        with self._changed:
            if generation == self.generation:
                self._in_flight.update(rows)
                for id_, size in zip(rows, sizes, strict=False):
                    self.bytes_in_flight += size - self._sizes.get(id_, 0)
                    self._sizes[id_] = size

    def offer(self, batch: Batch | StoredBatch) -> None:
        """Hand a batch to the publisher, unless the read-ahead was discarded since it was read."""
        with self._changed:
            if batch.generation == self.generation:
                self._ready.append(batch)
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Note the error that ended the reading: the next `take` raises it."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait for this time, or until closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    @property
    def closed(self) -> bool:
        """Whether the reader has to stop."""
        return self._closed

    def _most_bytes(self) -> int:
        """Return the largest size of the next read."""
        return (
            self.size.bytes
            if self._limits.window_rows is None
            else min(self.size.bytes, self._limits.window_bytes - self.bytes_in_flight)
        )
