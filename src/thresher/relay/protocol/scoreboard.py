"""The scoreboard of a shard that delivers at least once: which rows wait, and which keys have a row in flight.

1. A key has at most one row in flight. The key's barrier is raised when the row is sent, and lowered only when the
   row's purge has committed.
2. A transform may give a row another topic and key. Then the row belongs to both keys, the stored and the sent one, and
   waits until it is the first of both.
3. A wave is as large as the limit of rows in flight allows. Keys take turns, so a key with many rows slows only itself.
   A row without a key has no order, and takes its turn as if it had a key of its own.
4. A row that could not be sent goes back to the head of its keys.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from thresher.delivery.row import Record, Row


class Marked(NamedTuple):
    """A row on the scoreboard, with the streams (topic and key) that it belongs to."""

    row: Row
    streams: tuple[Any, ...]
    size: int


class Scoreboard:
    """Rows that are marked and not purged yet. Without input or output."""

    def __init__(self, most_in_flight: int) -> None:
        self.most_in_flight = most_in_flight
        # By stream: its rows in the order in which they must be sent, and their bytes.
        self._waiting: dict[Any, deque[Marked]] = {}
        self._bytes: dict[Any, int] = {}
        # Rows that may be sent now, in the order of their turns: the first of all their streams, none in flight.
        self._ready: dict[int, Marked] = {}
        self._sent: dict[int, Marked] = {}
        self._raised: set[Any] = set()

    @property
    def in_flight(self) -> int:
        """The number of rows sent whose purge has not committed."""
        return len(self._sent)

    @property
    def waiting(self) -> list[Row]:
        """Rows that were not sent yet."""
        return [each.row for stream, rows in self._waiting.items() for each in rows if each.streams[0] == stream]

    @property
    def busy(self) -> bool:
        """Whether rows are in flight or may be sent now."""
        return bool(self._sent or self._ready)

    def hot(self, many: int, much: int) -> list[Any]:
        """Return the keys with at least `many` rows or `much` bytes waiting: no more of them need be marked."""
        waiting = self._waiting
        hot = {stream for stream, rows in waiting.items() if len(rows) >= many}
        hot.update([stream for stream, size in self._bytes.items() if size >= much])
        return [stream for stream in hot if isinstance(stream, tuple)]

    def add(self, rows: Iterable[Row]) -> None:
        """Add marked rows, in the order in which they must be sent."""
        waiting, sizes, raised = self._waiting, self._bytes, self._raised
        for row in rows:
            marked = _marked(row)
            first = True
            for stream in marked.streams:
                if stream in waiting:
                    waiting[stream].append(marked)
                    sizes[stream] += marked.size
                    first = False
                else:
                    waiting[stream] = deque((marked,))
                    sizes[stream] = marked.size
                    first = first and stream not in raised
            if first:
                self._ready[row.id] = marked

    def wave(self) -> list[Row]:
        """Return the rows to send next, at most one of a key, and raise the barriers of their keys."""
        wave: list[Row] = []
        waiting, sizes = self._waiting, self._bytes
        room = self.most_in_flight - len(self._sent)
        while self._ready and len(wave) < room:
            id_ = next(iter(self._ready))
            marked = self._ready.pop(id_)
            wave.append(marked.row)
            self._sent[id_] = marked
            for stream in marked.streams:
                self._raised.add(stream)
                rows = waiting[stream]
                rows.popleft()
                if rows:
                    sizes[stream] -= marked.size
                else:
                    del waiting[stream], sizes[stream]
        return wave

    def purged(self, rows: Iterable[Row]) -> None:
        """Lower the barriers of rows whose purge has committed."""
        waiting, raised = self._waiting, self._raised
        for row in rows:
            marked = self._sent.pop(row.id)
            raised.difference_update(marked.streams)
            for stream in marked.streams:
                if stream in waiting:
                    first = waiting[stream][0]
                    if len(first.streams) == 1 or self._is_first(first):
                        self._ready[first.row.id] = first

    def again(self, rows: Iterable[Row]) -> None:
        """Put rows that were not sent back: each is the first of its keys again."""
        for row in rows:
            marked = self._sent.pop(row.id)
            self._raised.difference_update(marked.streams)
            for stream in marked.streams:
                self._waiting.setdefault(stream, deque()).appendleft(marked)
                self._bytes[stream] = self._bytes.get(stream, 0) + marked.size
            self._ready[row.id] = marked

    def _is_first(self, marked: Marked) -> bool:
        """Whether no other row of any of its keys comes before this one, waiting or in flight."""
        return all(stream not in self._raised and self._waiting[stream][0] is marked for stream in marked.streams)


def _marked(row: Row) -> Marked:
    """Return a row with the stored and the sent topic and key, within which order is kept; its id if it has no key."""
    id_, _, topic, key, plan = row
    if not isinstance(plan, Record):
        return Marked(row, (id_ if key is None else (topic, key),), 0)
    size = len(plan.value or b"") + len(plan.key or b"")
    # Mostly the stored and the sent key are the same.
    sent = None if plan.key == key and plan.topic == topic else row.sent_stream
    if sent is None or sent == (topic, key):
        return Marked(row, (id_ if key is None else (topic, key),), size)
    return Marked(row, (sent,) if key is None else ((topic, key), sent), size)
