"""Rows that are left out of reads one by one, with the topics and keys that they will be sent with.

A transform may send rows of several stored topics and keys to the same topic and key. Then only a row that was read and
transformed is known to belong behind a waiting row. So each such row is left out by its id. Later rows for the same
sent topic and key are left out too, until all are read again from the head.
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from thresher.delivery.row import Record, Row

# Bounded, because each read lists them all.
MOST_ROWS = 50_000


class LeftOut(NamedTuple):
    """A row, and why it waits. Until `until`, rows of the same sent topic and key wait with it without a look at it.

    `topic`: the topic that it waits for, if it does.
    """

    row: Row
    why: str
    until: float
    topic: str | None = None


class Withheld:
    """The rows left out since all were last read again. The time is passed in."""

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most = most_rows
        # By id and create time: whether other rows may wait behind the row.
        self._rows: dict[tuple[int, int], bool] = {}
        # By sent topic and key: why the first row waits, and until when the others wait with it.
        self._streams: dict[tuple[str, bytes], tuple[str, float]] = {}
        # Topics that cannot be written to, and that rows wait for.
        self._topics: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._rows)

    @property
    def full(self) -> bool:
        """Whether no further row can be left out."""
        return len(self._rows) >= self._most

    def leave_out(self, rows: Iterable[LeftOut]) -> tuple[dict[int, int], dict[int, int]]:
        """Add waiting rows, up to the limit. Return the first ones and those behind them, create times by id.

        The first row of each topic, or of each topic and key, is to be read again soon, to find out whether the wait is
        over. The others wait behind it.
        """
        first: dict[int, int] = {}
        behind: dict[int, int] = {}
        told: set[Any] = set()
        for row, why, until, topic in rows:
            key = (row.id, row.create_time)
            if key not in self._rows and self.full:
                break
            stream = row.sent_stream
            self._rows[key] = topic is not None or stream is not None
            tells = topic or stream or key
            (behind if tells in told else first)[row.id] = row.create_time
            told.add(tells)
            if topic is not None:
                self._topics.add(topic)
            if stream is not None:
                # Later rows do not prolong the wait: a steady stream of them would keep the first waiting for ever.
                self._streams.setdefault(stream, (why, until))
        return first, behind

    def why(self, stream: tuple[str, bytes] | None, now: float) -> str | None:
        """Return why rows of this sent topic and key have to wait behind others; None if they need not."""
        found = None if stream is None else self._streams.get(stream)
        return found[0] if found is not None and now < found[1] else None

    def overtaken_by(self, rows: Iterable[Row]) -> bool:
        """Whether one of these rows, if sent now, might overtake a row that is left out, or ends the wait of others."""
        if not self._rows:
            return False
        return any(
            # Others wait behind this row, which may have become dead meanwhile.
            self._rows.get((row.id, row.create_time), False)
            or row.sent_stream in self._streams
            or (isinstance(row.plan, Record) and row.plan.topic in self._topics)
            for row in rows
        )

    def waits_for(self, topics: Collection[str]) -> bool:
        """Whether rows are left out because one of these topics could not be written to."""
        return not self._topics.isdisjoint(topics)

    def readmit(self, rows: Iterable[Row]) -> None:
        """Forget these rows, which are sent or settled now: no row waits behind them."""
        if self._rows:
            for row in rows:
                self._rows.pop((row.id, row.create_time), None)

    def release(self) -> None:
        """Forget all rows: nothing is left out any more."""
        self._rows.clear()
        self._streams.clear()
        self._topics.clear()
