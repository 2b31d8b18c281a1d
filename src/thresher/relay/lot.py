"""Record batches of outbox rows: their one schema, and how they become rows with a plan each.

A transform sees and returns batches of this schema. What it leaves out is filtered; what it changes is matched to the
stored row by its id.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from thresher.outbox.admission import is_topic
from thresher.relay.fate import FILTERED, Dead, Filtered, Kind, dead
from thresher.relay.row import Headers, Record, Row

_MOMENT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("create_time", _MOMENT),
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("header_keys", pa.list_(pa.string())),
        ("header_values", pa.list_(pa.binary())),
        ("partition", pa.int32()),
        ("timestamp", _MOMENT),
    ]
)
# As read: with what is wrong with a row that the database can tell without handing it over.
READ_SCHEMA = SCHEMA.append(pa.field("flaw", pa.string()))
_FLAWS = {
    "too-large": (Kind.TOO_LARGE, "its value is larger than any record can be"),
    "headers": (Kind.MALFORMED, "its headers are arrays of arrays"),
    "timestamp": (Kind.MALFORMED, "its timestamp is before 1970 or after 9999, which Kafka cannot hold"),
}
# A year that Kafka's clients can still show, in microseconds: what is beyond it is a mistake.
_LATEST = 253_402_300_800_000_000


def batch_of(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows, as a query gives them, as a batch."""
    schema = READ_SCHEMA if rows and len(rows[0]) == len(READ_SCHEMA) else SCHEMA
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def flawless(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows that a transform may see, without the column for what is wrong with the others."""
    if "flaw" not in batch.schema.names:
        return batch
    return batch.filter(batch.column("flaw").is_null()).select(SCHEMA.names)


def _flawed(batch: pa.RecordBatch) -> dict[int, Dead]:
    """Return the rows that the database found a flaw in, by id."""
    if "flaw" not in batch.schema.names or batch.column("flaw").null_count == batch.num_rows:
        return {}
    pairs = zip(batch.column("id").to_pylist(), batch.column("flaw").to_pylist(), strict=True)
    return {id_: dead(*_FLAWS[flaw]) for id_, flaw in pairs if flaw is not None}


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of a batch that no transform has touched, each with its record or with why there is none."""
    ids, times, topics, keys = _identity(batch)
    plans = _plans(batch, topics, keys)
    if flawed := _flawed(batch):
        plans = [flawed.get(id_, plan) for id_, plan in zip(ids, plans, strict=True)]
    return list(map(Row._make, zip(ids, times, topics, keys, plans, strict=True)))


def transformed(batch: pa.RecordBatch, result: pa.RecordBatch, failed: Mapping[int, Dead]) -> list[Row]:
    """Return the rows of a batch with the plans that transforms made of them."""
    topics, keys = result.column("topic").to_pylist(), result.column("key").to_pylist()
    plans: dict[int, Record | Dead | Filtered] = dict(
        zip(result.column("id").to_pylist(), _plans(result, topics, keys), strict=True)
    )
    plans.update(failed)
    plans.update(_flawed(batch))
    return [Row(*row, plans.get(row[0], FILTERED)) for row in zip(*_identity(batch), strict=True)]


def _identity(batch: pa.RecordBatch) -> tuple[list[int], list[int], list[str], list[bytes | None]]:
    return (
        batch.column("id").to_pylist(),
        batch.column("create_time").cast(pa.int64()).to_pylist(),
        batch.column("topic").to_pylist(),
        batch.column("key").to_pylist(),
    )


def _plans(batch: pa.RecordBatch, topics: list[Any], keys: list[bytes | None]) -> list[Record | Dead]:
    names, values = batch.column("header_keys").to_pylist(), batch.column("header_values").to_pylist()
    partitions = batch.column("partition").to_pylist()
    moments = batch.column("timestamp").cast(pa.int64()).to_pylist()
    contents = batch.column("value").to_pylist()
    good = {topic for topic in set(topics) if topic is not None and is_topic(topic)}
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
            add(dead(Kind.MALFORMED, f"{topic!r} cannot be a topic's name"))
        elif partition is not None and partition < 0:
            add(dead(Kind.MALFORMED, f"{partition} cannot be a partition"))
        elif moment is not None and not 0 <= moment < _LATEST:
            add(dead(Kind.MALFORMED, "its timestamp is before 1970 or after 9999, which Kafka cannot hold"))
        else:
            # 0 means the time of sending, so the first millisecond of 1970 is the second.
            at = 0 if moment is None else max(1, moment // 1000)
            add(Record(topic, value, key, -1 if partition is None else partition, at, headers))
    return plans
