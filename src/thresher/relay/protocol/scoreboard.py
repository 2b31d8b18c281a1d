"""The scoreboard of a shard that delivers at least once: which rows wait, and which keys have one in flight.

1. Of a key, at most one row is in flight. Its barrier lowers when the row's purge has committed, and not before.
2. Waves are as large as the limit of rows in flight allows, and keys take turns: one with many rows slows only itself.
   A row without a key has no order to keep, and takes its turn as if it were the only one of its key.
3. A row that was not sent goes back to the head of its key.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

from thresher.delivery.row import Row


class Scoreboard:
    """Rows that are marked and not purged yet. Nothing here looks at a clock, a table or a broker."""

    def __init__(self, most_in_flight: int) -> None:
        self._most = most_in_flight
        # By stream; a row without a key is a stream of its own, by its id.
        self._waiting: dict[Any, deque[Row]] = {}
        # Streams with rows to send and none in flight, in the order of their turns.
        self._ready: dict[Any, None] = {}
        self._raised: set[Any] = set()

    @property
    def in_flight(self) -> int:
        """Rows whose purge has not committed."""
        return len(self._raised)

    @property
    def waiting(self) -> list[Row]:
        """Rows that were not sent yet."""
        return [row for rows in self._waiting.values() for row in rows]

    @property
    def busy(self) -> bool:
        """Whether there is anything to do without another mark."""
        return bool(self._raised or self._ready)

    def hot(self, many: int) -> list[Any]:
        """Return the keys with so many rows waiting: more of them need not be marked."""
        return [stream for stream, rows in self._waiting.items() if len(rows) >= many and isinstance(stream, tuple)]

    def add(self, rows: Iterable[Row]) -> None:
        """Take marked rows, in the order in which they must be sent."""
        for row in rows:
            stream = _stream(row)
            self._waiting.setdefault(stream, deque()).append(row)
            if stream not in self._raised:
                self._ready[stream] = None

    def wave(self) -> list[Row]:
        """Return the rows to send next, one of a key, and raise the barriers of their keys."""
        wave: list[Row] = []
        room = self._most - len(self._raised)
        while self._ready and len(wave) < room:
            stream = next(iter(self._ready))
            del self._ready[stream]
            wave.append(self._waiting[stream].popleft())
            self._raised.add(stream)
            if not self._waiting[stream]:
                del self._waiting[stream]
        return wave

    def purged(self, rows: Iterable[Row]) -> None:
        """Lower the barriers of rows whose purge has committed."""
        for row in rows:
            stream = _stream(row)
            self._raised.discard(stream)
            if stream in self._waiting:
                self._ready[stream] = None

    def again(self, rows: Iterable[Row]) -> None:
        """Take back rows that were not sent: each is the first of its key again."""
        for row in rows:
            stream = _stream(row)
            self._waiting.setdefault(stream, deque()).appendleft(row)
            self._raised.discard(stream)
            self._ready[stream] = None


def _stream(row: Row) -> Any:
    return row.id if row.key is None else row.stream
