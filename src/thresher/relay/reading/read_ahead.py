"""What the reader and the publisher of one attempt tell each other: batches that are ready, rows in flight, holds.

A read leaves out the rows that are in flight and the topics that are held. Once rows have gone back to the table,
everything that was read before is forgotten, whole: a batch carries the generation that it was read in.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thresher.delivery.batch import Batch
from thresher.delivery.stored_rows import StoredBatch
from thresher.relay.reading.batch_size import BatchSize
from thresher.relay.reading.row_source import ReadRequest

_HELD_SECONDS = 2.0

Key = tuple[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """How far ahead to read: rows and bytes of a batch at most, and how many rows may be in flight for another read.

    Without `window_rows`, about as many rows as a batch has may be in flight.
    """

    most_rows: int
    most_bytes: int = 16_000_000
    window_rows: int | None = None


class ReadAhead:
    """Shared by the reader's thread and the task's own. Safe from both."""

    def __init__(self, ahead: Ahead) -> None:
        self._window = ahead.window_rows
        self.size = BatchSize(most_rows=ahead.most_rows, most_bytes=ahead.most_bytes)
        self._changed = threading.Condition()
        self.generation = 0
        # Create times in microseconds, by id.
        self._in_flight: dict[int, int] = {}
        self._held: dict[str, float] = {}
        # Keys of which enough rows are marked; replaced as a whole by the publisher.
        self.hot: tuple[Key, ...] = ()
        self._ready: deque[Batch | StoredBatch] = deque()
        self._error: BaseException | None = None
        self._closed = False

    # For the publisher

    @property
    def ready(self) -> bool:
        """Whether the next batch, or the error that ended the reading, is there."""
        return bool(self._ready) or self._error is not None

    def is_current(self, batch: Batch) -> bool:
        """Whether nothing has gone back since it was read."""
        return batch.generation == self.generation

    def settled(self, ids: Iterable[int], create_times: Iterable[int]) -> None:
        """These rows are durably gone: a read that begins from now on does not find them. For any thread."""
        with self._changed:
            in_flight = self._in_flight
            for id_, create_time in zip(ids, create_times, strict=True):
                # Under an id that came back, another row may be in flight by now.
                if in_flight.get(id_) == create_time:
                    del in_flight[id_]
            self._changed.notify_all()

    def hold(self, topics: Iterable[str]) -> None:
        """Leave these topics out for a while."""
        with self._changed:
            self._held.update(dict.fromkeys(topics, time.monotonic() + _HELD_SECONDS))

    def discard(self) -> None:
        """Forget the rows in flight and the batches that were read: rows have gone back to the table."""
        with self._changed:
            self.generation += 1
            self._in_flight.clear()
            self._ready.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """End the reading."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # For the reader

    def take(self, seconds: float) -> Batch | StoredBatch | None:
        """Return the next batch; None if there is none within the time. Raises what ended the reading."""
        with self._changed:
            self._changed.wait_for(lambda: self.ready, seconds)
            if self._error is not None:
                raise self._error
            batch = self._ready.popleft() if self._ready else None
            self._changed.notify_all()
        return batch

    def await_due(self) -> ReadRequest | None:
        """Wait until another read is worth while, and return what to ask for; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._is_due())
            if self._closed:
                return None
            now = time.monotonic()
            self._held = {topic: until for topic, until in self._held.items() if until > now}
            return ReadRequest(
                rows=self.size.rows,
                bytes=self.size.bytes,
                in_flight=dict(self._in_flight),
                held=list(self._held),
                generation=self.generation,
            )

    def claim(self, rows: Mapping[int, int], generation: int) -> None:
        """Note rows that were read, by id with their create times, unless rows have gone back since."""
        with self._changed:
            if generation == self.generation:
                self._in_flight.update(rows)

    def offer(self, batch: Batch | StoredBatch) -> None:
        """Hand a batch over, unless rows have gone back since it was read."""
        with self._changed:
            if batch.generation == self.generation:
                self._ready.append(batch)
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Have the next `take` raise what ended the reading."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait so long, or until the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    @property
    def closed(self) -> bool:
        """Whether the reading has to end."""
        return self._closed

    def _is_due(self) -> bool:
        """Whether to read: no batch is left, and at most one is sent and not settled: a read visits rows in flight."""
        most = max(self.size.first_rows, self.size.rows) if self._window is None else self._window - 1
        return not self._ready and len(self._in_flight) <= most
