"""A batch: rows that were read together, each with the record to send or with the reason why it cannot be sent.

The reader makes a batch, transforms may change it, and the publisher sends it. It carries the rows, the generation in
which they were read, and the number of rows in a row on which transforms failed.
"""

import enum
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from thresher.core.topic_name import is_topic
from thresher.delivery import columns
from thresher.delivery.fate import FILTERED, Dead, Filtered, Kind, dead
from thresher.delivery.row import BY_ROW_KEY, ColumnRows, Headers, Record, Row, RowList, Rows
from thresher.delivery.stored_rows import FEW, FewRows, micros

_FLAWS = {
    "too-large": (Kind.TOO_LARGE, "its key, value or headers are larger than any record can be"),
    "headers": (Kind.MALFORMED, "its headers are arrays of arrays, or more than 10,000"),
    "message": (
        Kind.MALFORMED,
        "its message in the log cannot be read, or has too many headers; the value holds the whole message",
    ),
    "timestamp": (Kind.MALFORMED, "its timestamp is before 1970 or after 9999, which Kafka cannot hold"),
}
# The end of the year 9999 in microseconds: Kafka's clients cannot show a later time, and it is surely a mistake.
_LATEST = 253_402_300_800_000_000
# Returns which of these topics are reserved: no row may be sent to them.
Reserved = Callable[[Collection[str]], Collection[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingTransform:
    """A transform keeps failing, so the fault is its own: rows of these stored topics wait until it succeeds."""

    topics: frozenset[str]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows read together, in the order in which they must be sent."""

    rows: Rows
    # How often the read-ahead had been discarded when these rows were read. A batch of an older generation is dropped.
    generation: int = 0
    # Consecutive rows on which transforms failed, up to the end of this batch.
    failures: int = 0
    # Set if a transform is at fault: then the batch is empty, and the rows stay in the table to be read again.
    failing: FailingTransform | None = None
    # How long transforms took.
    transform_seconds: float = 0.0


class NothingYet(enum.Enum):
    """The answer of a reader that has no row at the moment."""

    NOTHING_YET = enum.auto()


NOTHING_YET = NothingYet.NOTHING_YET


def nothing_reserved(_: Collection[str]) -> Collection[str]:
    """Reserve no topic: rows may be sent to any."""
    return ()


def _flawed(batch: pa.RecordBatch) -> dict[int, Dead]:
    """Return the fate of each row in which the database found a flaw, by id."""
    if "flaw" not in batch.schema.names or batch.column("flaw").null_count == batch.num_rows:
        return {}
    pairs = zip(batch.column("id").to_pylist(), batch.column("flaw").to_pylist(), strict=True)
    return {id_: dead(*_FLAWS[flaw]) for id_, flaw in pairs if flaw is not None}


def rows_of(batch: pa.RecordBatch | FewRows, reserved: Reserved = nothing_reserved) -> Rows:
    """Return stored rows, each with its record or with the reason why it cannot be sent. For rows without transforms.

    A row for a reserved topic is dead.
    """
    if isinstance(batch, FewRows):
        plain = _plain_columns(batch, reserved) if len(batch.found) > FEW else None
        return _few(batch, reserved) if plain is None else plain
    found = column_rows(batch, reserved) if batch.num_rows > FEW else None
    return _each(batch, reserved) if found is None else found


def column_rows(batch: pa.RecordBatch, reserved: Reserved = nothing_reserved) -> ColumnRows | None:
    """Return the rows as columns; None if a row cannot be sent, or has a timestamp or partition key of its own."""
    if _flawed(batch) or _has_partition_keys(batch):
        return None
    names, values = batch.column("header_keys"), batch.column("header_values")
    stored, partitions, moments = batch.column("topic"), batch.column("partition"), batch.column("timestamp")
    if stored.null_count or names.null_count or values.null_count or moments.null_count < batch.num_rows:
        return None
    topics = columns.texts(stored)
    distinct = frozenset(topics)
    headers = _headers(names, values)
    placed = partitions.null_count < batch.num_rows
    if headers is None or not all(map(is_topic, distinct)) or reserved(distinct):
        return None
    if placed and pc.min(partitions).as_py() < 0:
        return None
    return ColumnRows(
        ids=columns.integers(batch.column("id")),
        create_times=columns.integers(batch.column("create_time")),
        named=topics,
        values=batch.column("value").to_pylist(),
        keys=batch.column("key").to_pylist(),
        partitions=pc.fill_null(partitions, -1).to_pylist() if placed else [-1] * len(topics),
        headers=headers,
        topics=distinct,
        asks_for_partitions=placed,
        size=sum(map(columns.size, (batch.column("key"), batch.column("value"), names.flatten(), values.flatten()))),
    )


def _headers(names: pa.Array, values: pa.Array) -> Sequence[Headers | None] | None:
    """Return each row's headers; None if a header has no name, or a row has unequal numbers of names and values."""
    flat = names.flatten()
    if not len(flat) and not len(values.flatten()):
        return [None] * len(names)
    if flat.null_count or not columns.same_lengths(names, values):
        return None
    pairs = list(zip(columns.texts(flat), values.flatten().to_pylist(), strict=True))
    found = columns.lists(names, pairs)
    return found if all(found) else [each or None for each in found]


def _plain_columns(few: FewRows, reserved: Reserved) -> ColumnRows | None:
    """Return the rows as columns; None if a row cannot be sent, or has a timestamp or partition key of its own."""
    ids, _, topics, keys, contents, names, values, partitions, moments, *rest = zip(*few.found, strict=True)
    count = len(ids)
    if any(column.count(None) < count for column in (moments, *rest)):
        return None
    distinct = frozenset(topics)
    if None in distinct or not all(map(is_topic, distinct)) or reserved(distinct):
        return None
    placed = partitions.count(None) < count
    if placed and min(partition for partition in partitions if partition is not None) < 0:
        return None
    headers: list[Headers | None] = [None] * count
    if any(names) or any(values):
        # `map` and `zip` run in C, which matters here: there are many rows.
        if None in names or None in values or None in chain.from_iterable(names):
            return None
        if list(map(len, names)) != list(map(len, values)):
            return None
        headers = list(map(list, map(zip, names, values)))
        if not all(headers):
            headers = [each or None for each in headers]
    return ColumnRows(
        ids=array("q", ids),
        create_times=array("q", few.create_times),
        named=topics,
        values=contents,
        keys=keys,
        partitions=[-1 if partition is None else partition for partition in partitions] if placed else [-1] * count,
        headers=headers,
        topics=distinct,
        asks_for_partitions=placed,
        size=few.nbytes,
    )


def _few(few: FewRows, reserved: Reserved) -> RowList:
    ids, times, topics, keys, contents, names, values, partitions, moments, *rest = zip(*few.found, strict=True)
    given = [None if moment is None else micros(moment) for moment in moments]
    plans: list[Any] = _plans(topics, keys, contents, names, values, partitions, given, reserved)
    ordered: Sequence[bytes | None] = keys
    if len(rest) > 1:
        ordered, plans = _by_partition_keys(rest[1], keys, plans)
    for place, flaw in enumerate(rest[0] if rest else ()):
        if flaw is not None:
            plans[place] = dead(*_FLAWS[flaw])
    return RowList(list(map(Row._make, zip(ids, map(micros, times), topics, ordered, plans, strict=True))))


def _each(batch: pa.RecordBatch, reserved: Reserved) -> RowList:
    ids, times, topics, keys = _identity(batch)
    plans: list[Any] = _plans_of(batch, topics, keys, reserved)
    if _has_partition_keys(batch):
        keys, plans = _by_partition_keys(batch.column("partition_key").to_pylist(), keys, plans)
    if flawed := _flawed(batch):
        plans = [flawed.get(id_, plan) for id_, plan in zip(ids, plans, strict=True)]
    return RowList(list(map(Row._make, zip(ids, times, topics, keys, plans, strict=True))))


def transformed(
    batch: pa.RecordBatch, result: pa.RecordBatch, failed: Mapping[int, Dead], reserved: Reserved = nothing_reserved
) -> RowList:
    """Return the rows of a batch, each with the plan that the transforms' result gives it.

    A row's partition key still chooses the partition after a transform has changed the key, unless the transform names
    a partition.
    """
    topics, keys = result.column("topic").to_pylist(), result.column("key").to_pylist()
    plans: dict[int, Record | Dead | Filtered] = dict(
        zip(result.column("id").to_pylist(), _plans_of(result, topics, keys, reserved), strict=True)
    )
    plans.update(failed)
    plans.update(_flawed(batch))
    ids, times, stored, stored_keys = _identity(batch)
    found: list[Any] = [plans.get(id_, FILTERED) for id_ in ids]
    if _has_partition_keys(batch):
        stored_keys, found = _by_partition_keys(batch.column("partition_key").to_pylist(), stored_keys, found)
    return RowList(list(map(Row._make, zip(ids, times, stored, stored_keys, found, strict=True))))


def _has_partition_keys(batch: pa.RecordBatch) -> bool:
    return (
        "partition_key" in batch.schema.names and batch.column("partition_key").null_count < batch.num_rows
    )  # fmt: skip


def _by_partition_keys(
    partition_keys: Sequence[bytes | None], keys: Sequence[bytes | None], plans: Sequence[Any]
) -> tuple[list[bytes | None], list[Any]]:
    """Return the rows' keys and plans. A partition key, if a row has one, decides its order and its partition."""
    ordered, planned = list(keys), list(plans)
    for place, partition_key in enumerate(partition_keys):
        if partition_key is not None:
            ordered[place] = partition_key
            if isinstance(planned[place], Record) and planned[place].partition < 0:
                planned[place] = planned[place]._replace(partition=BY_ROW_KEY)
    return ordered, planned


def _identity(batch: pa.RecordBatch) -> tuple[list[int], list[int], list[str], list[bytes | None]]:
    return (
        batch.column("id").to_pylist(),
        batch.column("create_time").cast(pa.int64()).to_pylist(),
        batch.column("topic").to_pylist(),
        batch.column("key").to_pylist(),
    )


def _plans_of(
    batch: pa.RecordBatch, topics: list[Any], keys: list[bytes | None], reserved: Reserved
) -> list[Record | Dead]:
    contents, names, values, partitions = (
        batch.column(name).to_pylist() for name in ("value", "header_keys", "header_values", "partition")
    )
    moments = batch.column("timestamp").cast(pa.int64()).to_pylist()
    return _plans(topics, keys, contents, names, values, partitions, moments, reserved)


def _plans(
    topics: Sequence[Any],
    keys: Sequence[bytes | None],
    contents: Sequence[bytes | None],
    names: Sequence[Any],
    values: Sequence[Any],
    partitions: Sequence[int | None],
    moments: Sequence[int | None],
    reserved: Reserved,
) -> list[Record | Dead]:
    named = {topic for topic in set(topics) if topic is not None and is_topic(topic)}
    good = named.difference(reserved(named))
    plans: list[Record | Dead] = []
    add = plans.append
    for topic, key, value, header_names, header_values, partition, moment in zip(
        topics, keys, contents, names, values, partitions, moments, strict=True
    ):
        headers: Headers | None = None
        if header_names or header_values:
            if header_values is None or header_names is None or len(header_names) != len(header_values):
                add(dead(Kind.MALFORMED, "its headers have unequal numbers of names and values"))
                continue
            if None in header_names:
                add(dead(Kind.MALFORMED, "a header has no name"))
                continue
            headers = list(zip(header_names, header_values, strict=True))
        if topic not in good:
            why = "is a relay's progress topic" if topic in named else "cannot be a topic's name"
            add(dead(Kind.MALFORMED, f"{topic!r} {why}"))
        elif partition is not None and partition < 0:
            add(dead(Kind.MALFORMED, f"{partition} cannot be a partition"))
        elif moment is not None and not 0 <= moment < _LATEST:
            add(dead(Kind.MALFORMED, "its timestamp is before 1970 or after 9999, which Kafka cannot hold"))
        else:
            # 0 stands for the time of sending, so a timestamp in the first millisecond of 1970 becomes 1.
            at = 0 if moment is None else max(1, moment // 1000)
            add(Record(topic, value, key, -1 if partition is None else partition, at, headers))
    return plans
