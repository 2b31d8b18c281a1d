"""Reads the next lots while the one before them is published.

A read leaves out the rows that are in flight, and nothing that commits late is overtaken: where it may go on behind the
last row instead of beginning at the head is the head's to know. What was read before rows went back to the table is
forgotten, whole.
"""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import pyarrow as pa

from thresher.delivery.batch import Few, batch_of
from thresher.delivery.columns import integers
from thresher.delivery.fate import Dead
from thresher.delivery.row import Row
from thresher.relay.reading.marking import Marker
from thresher.relay.reading.pending_rows import Head
from thresher.relay.reading.weight import Weight

# The first lots are small, and grow as they turn out to be quick: a broker that cannot take many gets few.
_FIRST_ROWS, _FIRST_BYTES = 1_000, 1_000_000
_LEAST_ROWS, _LEAST_BYTES = 10, 100_000
# A read that goes on aims at a little less than is wanted.
_FULL = 0.75
# With many rows to step over, a look is not cheap: then there are fewer of them.
_LONG_LOOK_SECONDS, _SHARE_OF_LOOKING, _LONGEST_WAIT_SECONDS = 0.02, 0.1, 1.0
# A shard that had nothing for ten seconds looks twenty times less often than one that is in use.
_SHARE_OF_IDLENESS, _SLOWEST = 0.002, 20
_HELD_SECONDS = 2.0
# A read steps over what is in flight, and over what was settled since the last one: with several lots at a time the
# database was seen to take a third less for a row.
_LOTS_TOGETHER = 4
# What stands for rows that nobody looks into before they are sent.
_EMPTY = batch_of([])
# While few rows are on their way no others can be, and looks would only take the processor from them.
_FEW, _BUSY_SECONDS = 100, 0.003


def pause(looked_seconds: float, idle_seconds: float, poll_seconds: float) -> float:
    """Return how long to wait after a look in vain: longer after a slow one, and the longer nothing has come."""
    if looked_seconds >= _LONG_LOOK_SECONDS:
        return min(looked_seconds / _SHARE_OF_LOOKING, _LONGEST_WAIT_SECONDS)
    return max(poll_seconds, min(idle_seconds * _SHARE_OF_IDLENESS, _SLOWEST * poll_seconds))


@dataclass(slots=True)
class ReadLot:
    """Rows as they were read, and what transforms made of them; or as they are sent, where nobody changes them."""

    read: pa.RecordBatch | Few
    generation: int
    rows: Sequence[Row] | None = None
    result: pa.RecordBatch | None = None
    failed: dict[int, Dead] = field(default_factory=dict)
    failures: int = 0

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows as they were read, as a batch."""
        return self.read.batch() if isinstance(self.read, Few) else self.read


class ReadAhead:
    """A few lots ahead, read in a thread of its own. All methods are for the task's main thread."""

    def __init__(
        self,
        open_head: Callable[[], Head | Marker],
        *,
        most_rows: int,
        poll_seconds: float,
        most_bytes: int = 16_000_000,
        window_rows: int | None = None,
        rows_of: Callable[[pa.RecordBatch], Sequence[Row]] | None = None,
    ) -> None:
        """`rows_of` makes rows of a batch, ahead too, where nobody looks into what is taken: then a few rows have an
        empty batch."""
        self._open_head = open_head
        self._most_rows = most_rows
        self._rows = min(_FIRST_ROWS, most_rows)
        self._most_bytes = most_bytes
        self._bytes = min(_FIRST_BYTES, most_bytes)
        self._poll = poll_seconds
        # How many rows may be in flight for another read; about as many as a lot has, if None.
        self._window = window_rows
        self._rows_of = rows_of
        self._weight = Weight()
        self._last = self._took = 0.0
        self._state = threading.Condition()
        self.generation = 0
        self._in_flight: set[int] = set()
        self._held: dict[str, float] = {}
        self._ready: deque[ReadLot] = deque()
        self._error: BaseException | None = None
        self._stopped = threading.Event()
        self._numbers = itertools.count(1)
        self.lots: dict[bytes, ReadLot] = {}
        self._thread = threading.Thread(target=self._run, name="read-ahead", daemon=True)

    def start(self) -> None:
        """Begin to read. Only after recovery: a row may be sent only by the producer whose init precedes its read."""
        self._thread.start()

    def take(self, seconds: float) -> pa.RecordBatch | None:
        """Return the next batch, marked with its lot's number; None if there is none within the time."""
        with self._state:
            self._state.wait_for(lambda: bool(self._ready) or self._error is not None, seconds)
            if self._error is not None:
                raise self._error
            lot = self._ready.popleft() if self._ready else None
            self._state.notify_all()
        if lot is None:
            return None
        number = str(next(self._numbers)).encode()
        self.lots = {number: lot}
        batch = _EMPTY if isinstance(lot.read, Few) and self._rows_of is not None else lot.batch
        return batch.replace_schema_metadata({b"lot": number})

    @property
    def ready(self) -> bool:
        """Whether the next batch, or the error that ended the reading, is there."""
        return bool(self._ready) or self._error is not None

    def current(self, lot: ReadLot) -> bool:
        """Whether nothing has gone back since it was read."""
        return lot.generation == self.generation

    def settled(self, ids: Iterable[int]) -> None:
        """These rows are durably gone: a read that begins from now on does not find them. For any thread."""
        with self._state:
            self._in_flight.difference_update(ids)
            self._state.notify_all()

    def hold(self, topics: Iterable[str]) -> None:
        """Leave these topics out for a while."""
        with self._state:
            until = time.monotonic() + _HELD_SECONDS
            self._held.update(dict.fromkeys(topics, until))

    def renew(self) -> None:
        """Forget what is in flight and what was read."""
        with self._state:
            self.generation += 1
            self._in_flight.clear()
            self._ready.clear()
            self._state.notify_all()

    def pace(self, rows: int, seconds: float, most_seconds: float) -> None:
        """Learn from a lot: after a slow one the next are half as large, after a quick and full one twice or more."""
        if seconds > most_seconds:
            self._rows = min(self._most_rows, max(_LEAST_ROWS, min(self._rows, rows) // 2))
            self._bytes = max(_LEAST_BYTES, self._bytes // 2)
        elif seconds < most_seconds / 2:
            more = 4 if seconds < most_seconds / 8 else 2
            self._bytes = min(self._most_bytes, self._bytes * more)
            if rows >= _FULL * self._rows:
                self._rows = min(self._most_rows, self._rows * more)

    def close(self) -> None:
        """Stop reading."""
        self._stopped.set()
        with self._state:
            self._state.notify_all()
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        try:
            head = self._open_head()
            try:
                while not self._stopped.is_set():
                    self._look(head)
            finally:
                head.close()
        except BaseException as error:  # noqa: BLE001 - raised again where a lot is taken
            with self._state:
                self._error = error
                self._state.notify_all()

    def _is_time(self) -> bool:
        """Whether to read: no more than one lot is sent and not settled, since a read steps over all of them; and none
        is left, or one where a read gives many and takes longer than a lot does."""
        most = max(_FIRST_ROWS, self._rows) if self._window is None else self._window - 1
        left = len(self._ready)
        return left <= (self._lots > 1) and len(self._in_flight) - left * self._rows <= most

    @property
    def _lots(self) -> int:
        """How many lots are read at a time: several once they have as many rows as they may, if those are small."""
        if self._rows < self._most_rows or self._window is not None:
            return 1
        return max(1, min(_LOTS_TOGETHER, int(self._bytes / max(1.0, self._weight.of(self._rows)))))

    def _look(self, head: Head | Marker) -> None:
        with self._state:
            self._state.wait_for(lambda: self._is_time() or self._stopped.is_set())
            now = time.monotonic()
            self._held = {topic: until for topic, until in self._held.items() if until > now}
            generation, in_flight, held = self.generation, list(self._in_flight), list(self._held)
        if self._stopped.is_set():
            return
        rows = self._rows
        read = head.read(self._lots * rows, self._bytes, in_flight, held, generation)
        if read is None:
            done = time.monotonic()
            poll = max(self._poll, _BUSY_SECONDS) if in_flight else self._poll
            # A machine that stalls makes one look long; what makes looks long makes all of them so.
            took, self._took = min(done - now, self._took), done - now
            self._stopped.wait(pause(took, done - self._last, poll))
            return
        self._last = now
        ids = read.ids if isinstance(read, Few) else integers(read.column("id"))
        self._weight.learn(read.nbytes, len(ids))
        with self._state:
            if generation == self.generation:
                self._in_flight.update(ids)
        for each in _cut(read, rows):
            self._give(each, generation)
        if len(ids) < _FEW:
            self._stopped.wait(_BUSY_SECONDS)

    def _give(self, read: pa.RecordBatch | Few, generation: int) -> None:
        """Hand a lot over, unless rows have gone back since it was read. Turned into rows while the publisher waits for
        a broker, and none of its time is spent on that."""
        lot = ReadLot(read=read, generation=generation)
        if self._rows_of is not None and not isinstance(read, Few) and generation == self.generation:
            lot.rows = self._rows_of(read)
        with self._state:
            if generation == self.generation:
                self._ready.append(lot)
                self._state.notify_all()


def _cut(read: pa.RecordBatch | Few, rows: int) -> Sequence[pa.RecordBatch | Few]:
    """Return lots of so many rows: the oldest first, whatever their keys, since rows of one age lie together."""
    if isinstance(read, Few):
        found = sorted(read.found, key=itemgetter(0))
        return [Few(found[start : start + rows]) for start in range(0, len(found), rows)]
    batch = read.sort_by("id") if read.num_rows > rows else read
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]
