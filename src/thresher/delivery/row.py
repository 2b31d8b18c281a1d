"""Rows on their way to Kafka: each as it was read, with the record to send.

A protocol handles rows as a whole (`Rows`), and asks whether a row is dead, whether a dead row blocks its key, and
which topics are written to. Most rows are sent as they are stored, and no single row is looked at: `ColumnRows` keeps
such rows as columns.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any, NamedTuple, Protocol, overload

from thresher.delivery.fate import SENT, Dead, Fate, Filtered

Headers = list[tuple[str, bytes | None]]
# Stands for a partition that is chosen by the row's key, not the record's, once the number of partitions is known.
BY_ROW_KEY = -2


class Record(NamedTuple):
    """A record as the producer takes it. `timestamp`: milliseconds; 0: the time of sending, by a server's clock."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    timestamp: int
    headers: Headers | None


class Row(NamedTuple):
    """A row and its plan. `topic` and `key` are the stored ones: order, holds and blocks go by them.

    In Deimos' table, `key` is the partition key if there is one, not the key of the record.
    """

    id: int
    # Microseconds since 1970. Id and create time identify a row: after a TRUNCATE, the same ids may come again.
    create_time: int
    topic: str
    key: bytes | None
    plan: "Record | Filtered | Dead"

    @property
    def stream(self) -> Any:
        """The stored topic and key, within which order is kept; None for a row without a key, which has no order."""
        return None if self.key is None else (self.topic, self.key)

    @property
    def sent_topic(self) -> str:
        """The topic that the record is sent to; empty if nothing is sent."""
        return self.plan.topic if isinstance(self.plan, Record) else ""

    @property
    def sent_stream(self) -> tuple[str, bytes] | None:
        """The topic and key that the record is sent with; None if nothing is sent or the record has no key."""
        if not isinstance(self.plan, Record):
            return None
        key = self.key if self.plan.partition == BY_ROW_KEY else self.plan.key
        return None if key is None else (self.plan.topic, key)


class RecordSink(Protocol):
    """Takes records: a producer."""

    def produce(self, records: Iterable[tuple[int, Any]], /) -> None:
        """Take records, each with its place."""

    def produce_columns(
        self,
        topics: Sequence[str],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        partitions: Sequence[int],
        headers: Sequence[Any],
        /,
        *,
        first: int = 0,
    ) -> None:
        """Take records without timestamps; `first` is the place of the first one."""


@dataclass(frozen=True, slots=True, eq=False)
class RowList(Sequence[Row]):
    """Rows one by one, each with its own plan."""

    rows: Sequence[Row] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> "RowList": ...
    def __getitem__(self, place: int | slice) -> "Row | RowList":
        return RowList(self.rows[place]) if isinstance(place, slice) else self.rows[place]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def ids(self) -> Sequence[int]:
        """The rows' ids."""
        return [row.id for row in self.rows]

    @property
    def create_times(self) -> Sequence[int]:
        """The rows' create times, in microseconds since 1970."""
        return [row.create_time for row in self.rows]

    @property
    def fates(self) -> list[Fate]:
        """The fate of each row."""
        return [SENT if isinstance(row.plan, Record) else row.plan for row in self.rows]

    @property
    def keys(self) -> Sequence[bytes | None]:
        """The key of each record that is sent."""
        return [record.key for _, record in self.records()]

    @property
    def topics(self) -> frozenset[str]:
        """The topics that records are sent to."""
        return frozenset({record.topic for _, record in self.records()})

    @property
    def size(self) -> int:
        """The bytes of keys, values and headers of the records to send, uncompressed."""
        return sum(_size(record) for _, record in self.records())

    @property
    def asks_for_partitions(self) -> bool:
        """Whether a record names its partition."""
        return any(record.partition >= 0 for _, record in self.records())

    @property
    def has_timestamps(self) -> bool:
        """Whether a record has a timestamp of its own."""
        return any(record.timestamp > 0 for _, record in self.records())

    @property
    def has_dead(self) -> bool:
        """Whether a row can never be sent."""
        return any(isinstance(row.plan, Dead) for row in self.rows)

    @property
    def has_blocking(self) -> bool:
        """Whether a dead row keeps the later rows of its key waiting."""
        return any(isinstance(row.plan, Dead) and row.plan.blocking for row in self.rows)

    def records(self) -> Iterable[tuple[int, Record]]:
        """Return the records to send, each with the place of its row."""
        return ((place, row.plan) for place, row in enumerate(self.rows) if isinstance(row.plan, Record))

    def produce_to(self, sink: RecordSink, first: int = 0, last: int | None = None) -> None:
        """Hand the records over, from the first place up to the last."""
        sink.produce(islice(self.records(), first, last))

    def blocked_left_out(self) -> "RowList":
        """Return the rows without those that follow a blocking row of their stream."""
        blocked: set[Any] = set()
        kept = []
        for row in self.rows:
            if row.stream in blocked:
                continue
            kept.append(row)
            if isinstance(row.plan, Dead) and row.plan.blocking:
                blocked.add(row.stream)
        return RowList(kept)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnRows(Sequence[Row]):
    """Rows that are all sent as they are stored, kept as columns. A `Row` is made only when one is asked for.

    No row has a timestamp of its own. `named` holds each row's topic.
    """

    ids: "array[int]"
    create_times: "array[int]"
    named: Sequence[str]
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    partitions: Sequence[int]
    headers: Sequence[Headers | None]
    topics: frozenset[str]
    asks_for_partitions: bool
    size: int

    @property
    def fates(self) -> list[Fate]:
        """Every row is sent."""
        return [SENT] * len(self.ids)

    @property
    def has_timestamps(self) -> bool:
        """No row has a timestamp of its own."""
        return False

    @property
    def has_dead(self) -> bool:
        """No row is dead."""
        return False

    @property
    def has_blocking(self) -> bool:
        """No row is dead."""
        return False

    def records(self) -> Iterable[tuple[int, Any]]:
        """Return each row's record, as a plain tuple in the order of `Record`'s fields, with its place."""
        return enumerate(self._contents())

    def produce_to(self, sink: RecordSink, first: int = 0, last: int | None = None) -> None:
        """Hand the records over, from the first place up to the last."""
        part = self[first:last]
        sink.produce_columns(part.named, part.values, part.keys, part.partitions, part.headers, first=first)

    def blocked_left_out(self) -> "ColumnRows":
        """Return the rows: only dead rows block others, and none is dead."""
        return self

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> "ColumnRows": ...
    def __getitem__(self, place: int | slice) -> "Row | ColumnRows":
        if not isinstance(place, slice):
            record = (
                self.named[place], self.values[place], self.keys[place], self.partitions[place], 0, self.headers[place]
            )  # fmt: skip
            return _row(self.ids[place], self.create_times[place], record)
        if len(range(len(self))[place]) == len(self):
            return self
        named = self.named[place]
        part = replace(
            self,
            ids=self.ids[place],
            create_times=self.create_times[place],
            named=named,
            values=self.values[place],
            keys=self.keys[place],
            partitions=self.partitions[place],
            headers=self.headers[place],
            topics=self.topics if len(self.topics) == 1 else frozenset(named),
        )
        return replace(part, size=sum(map(_size, part._contents())))

    def __iter__(self) -> Iterator[Row]:
        return map(_row, self.ids, self.create_times, self._contents())

    def _contents(self) -> Iterator[tuple[Any, ...]]:
        return zip(self.named, self.values, self.keys, self.partitions, repeat(0), self.headers, strict=False)


Rows = RowList | ColumnRows


def _row(id_: int, create_time: int, record: Any) -> Row:
    return Row(id_, create_time, record[0], record[2], Record._make(record))


def _size(record: tuple[Any, ...]) -> int:
    _, value, key, _, _, headers = record
    size = len(value or b"") + len(key or b"")
    for name, content in headers or ():
        size += len(name.encode()) + len(content or b"")
    return size
