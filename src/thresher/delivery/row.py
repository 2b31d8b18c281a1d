"""A row of the outbox on its way: what it was when it was read, and the record to send."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple, overload

from thresher.delivery.fate import Dead, Filtered

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    """A record as the producer takes it; `timestamp` in milliseconds, 0 for the time of sending by a server's clock."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    timestamp: int
    headers: Headers | None


class Row(NamedTuple):
    """A row and what is to become of it. `topic` and `key` are the stored ones: order, holds and blocks go by them."""

    id: int
    # Microseconds since 1970. With the id it tells a row from another that came back under the same id.
    create_time: int
    topic: str
    key: bytes | None
    plan: "Record | Filtered | Dead"

    @property
    def stream(self) -> Any:
        """What order is promised within; None where there is no order to keep."""
        return None if self.key is None else (self.topic, self.key)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sendable(Sequence[Row]):
    """Rows that are all to be sent as they are stored, as columns: a row is made when somebody looks at it.

    None has a time of its own. `named` is each row's topic, `topics` are all of them. `placed`: some ask for a
    partition. `size` is what `bytes_of` gives for them.
    """

    ids: "array[int]"
    create_times: "array[int]"
    named: Sequence[str]
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    partitions: Sequence[int]
    headers: Sequence[Headers | None]
    topics: frozenset[str]
    placed: bool
    size: int

    @property
    def records(self) -> Iterator[tuple[Any, ...]]:
        """What each row's `Record` holds."""
        return zip(self.named, self.values, self.keys, self.partitions, repeat(0), self.headers, strict=False)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> "Sendable": ...
    def __getitem__(self, place: int | slice) -> "Row | Sendable":
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
        return replace(part, size=sum(map(_size, part.records)))

    def __iter__(self) -> Iterator[Row]:
        return map(_row, self.ids, self.create_times, self.records)


def _row(id_: int, create_time: int, record: Any) -> Row:
    return Row(id_, create_time, record[0], record[2], Record._make(record))


def records_of(rows: Sequence[Row]) -> Iterable[tuple[int, Any]]:
    """Return what is to be sent of the rows, each with its place among them."""
    if isinstance(rows, Sendable):
        return enumerate(rows.records)
    return ((place, row[4]) for place, row in enumerate(rows) if isinstance(row[4], Record))


def bytes_of(rows: Sequence[Row]) -> int:
    """Return the bytes of key, value and headers (names and values) of what is to be sent, as they are uncompressed."""
    return rows.size if isinstance(rows, Sendable) else sum(_size(record) for _, record in records_of(rows))


def _size(record: tuple[Any, ...]) -> int:
    _, value, key, _, _, headers = record
    size = len(value or b"") + len(key or b"")
    for name, content in headers or ():
        size += len(name.encode()) + len(content or b"")
    return size


def topics_of(rows: Sequence[Row]) -> frozenset[str]:
    """Return the topics that the rows are to be sent to."""
    return rows.topics if isinstance(rows, Sendable) else frozenset({record[0] for _, record in records_of(rows)})
