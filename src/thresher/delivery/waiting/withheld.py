"""Rows that are left out of reads one by one, and the topics and keys that they are to be sent with.

A transform may send rows of several stored topics and keys to one. Then nothing that is stored tells which rows belong
behind a row that waits: only rows that were read, and transformed, are known. So each is left out by itself, and those
that come later for the same topic and key join it, until all are read again from the head.
"""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from thresher.delivery.row import Record, Row

# Each read names them all.
MOST_ROWS = 50_000


class LeftOut(NamedTuple):
    """A row, why it waits, and until when those that are sent behind it join it without another look.

    With a topic, it waits for that.
    """

    row: Row
    why: str
    until: float
    topic: str | None = None


class Withheld:
    """The rows, since all were last read again. Looks at no clock."""

    def __init__(self, most_rows: int = MOST_ROWS) -> None:
        self._most = most_rows
        # Whether other rows may wait behind one, by id and create time.
        self._rows: dict[tuple[int, int], bool] = {}
        # By topic and key as they are sent: why the first of them waits, and until when the others do with it.
        self._streams: dict[tuple[str, bytes], tuple[str, float]] = {}
        # Topics whose rows wait because the topic does.
        self._topics: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._rows)

    @property
    def full(self) -> bool:
        """Whether no other row can be left out."""
        return len(self._rows) >= self._most

    def leave_out(self, rows: Iterable[LeftOut]) -> tuple[dict[int, int], dict[int, int]]:
        """Take in rows that wait, and return those for which there is room, create times by id.

        The first for each topic, or topic and key, are to be looked at again soon: they tell whether the wait is over.
        The others wait behind them.
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
                # Rows that join put nothing off: else those that come one by one would keep the first waiting for ever.
                self._streams.setdefault(stream, (why, until))
        return first, behind

    def why(self, stream: tuple[str, bytes] | None, now: float) -> str | None:
        """Return why a row of this topic and key has to join others that wait, if it has."""
        found = None if stream is None else self._streams.get(stream)
        return found[0] if found is not None and now < found[1] else None

    def overtaken_by(self, rows: Iterable[Row]) -> bool:
        """Whether one of these rows, which go their way, might overtake one that is left out, or lets others go on."""
        if not self._rows:
            return False
        return any(
            # One that others wait behind may have become a dead row by now.
            self._rows.get((row.id, row.create_time), False)
            or row.sent_stream in self._streams
            or (isinstance(row.plan, Record) and row.plan.topic in self._topics)
            for row in rows
        )

    def waits_for(self, topics: Collection[str]) -> bool:
        """Whether rows are left out because one of these topics could not be written to."""
        return not self._topics.isdisjoint(topics)

    def readmit(self, rows: Iterable[Row]) -> None:
        """Take in that these rows go their way: those without a key overtake nobody, and are read again singly."""
        if self._rows:
            for row in rows:
                self._rows.pop((row.id, row.create_time), None)

    def release(self) -> None:
        """Take in that nothing is left out any more."""
        self._rows.clear()
        self._streams.clear()
        self._topics.clear()
