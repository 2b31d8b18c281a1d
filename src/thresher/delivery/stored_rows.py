"""Outbox rows as they are stored: their Arrow schema, and batches of them on the way to transforms or to Kafka.

Transforms take and return record batches of `SCHEMA`. A few rows stay as the tuples that the query returned.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import add, itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from thresher.db.row_schema import KEYED_SCHEMA, READ_SCHEMA, SCHEMA

__all__ = [
    "FEW",
    "READ_SCHEMA",
    "SCHEMA",
    "FewRows",
    "OrderedRows",
    "StoredBatch",
    "batch_of",
    "flawless",
    "read_of",
    "row_sizes",
    "split",
]

# Up to this many rows, tuples are faster than columns.
FEW = 16
_BY_COLUMNS = {len(schema): schema for schema in (SCHEMA, READ_SCHEMA, KEYED_SCHEMA)}
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class FewRows:
    """A few rows as a query returned them: putting them into columns would take longer than sending them."""

    found: Sequence[tuple[Any, ...]]

    @property
    def ids(self) -> Sequence[int]:
        """The rows' ids."""
        return [row[0] for row in self.found]

    @property
    def create_times(self) -> Sequence[int]:
        """The rows' create times, in microseconds since 1970."""
        return [micros(row[1]) for row in self.found]

    @property
    def nbytes(self) -> int:
        """The approximate bytes of all rows: keys, values and headers."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """The approximate bytes of each row."""
        return [sum(len(part or b"") for part in (*row[3:5], *(row[5] or ()), *(row[6] or ()))) for row in self.found]

    def batch(self) -> pa.RecordBatch:
        """Return the rows as a batch."""
        return batch_of(self.found)


@dataclass(frozen=True, slots=True)
class OrderedRows(FewRows):
    """Rows from the database's WAL, however many, ordered by id. Their size and create times are known already."""

    size: int
    times: Sequence[int]

    @property
    def create_times(self) -> Sequence[int]:
        """The rows' create times, in microseconds since 1970."""
        return self.times

    @property
    def nbytes(self) -> int:
        """The approximate bytes of all rows."""
        return self.size


def micros(moment: datetime) -> int:
    """Return a moment in microseconds since 1970."""
    return (moment - _EPOCH) // _MICROSECOND


def read_of(rows: Sequence[tuple[Any, ...]]) -> "FewRows | pa.RecordBatch":
    """Return rows of a query as tuples if they are few, otherwise as a record batch: whichever is faster."""
    return FewRows(rows) if len(rows) <= FEW else batch_of(rows)


def batch_of(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows of a query as a record batch."""
    schema = _BY_COLUMNS[len(rows[0])] if rows else SCHEMA
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def flawless(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows without a flaw, and without the column `flaw`: the rows that a transform may see."""
    if "flaw" not in batch.schema.names:
        return batch
    return batch.filter(batch.column("flaw").is_null()).select(SCHEMA.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """Rows as they were read, oldest first. The generation counts how often the read-ahead was discarded before."""

    stored: pa.RecordBatch | FewRows
    generation: int

    @property
    def arrow(self) -> pa.RecordBatch:
        """The rows as a record batch."""
        return self.stored.batch() if isinstance(self.stored, FewRows) else self.stored


def row_sizes(read: "pa.RecordBatch | FewRows") -> list[int]:
    """Return the approximate bytes of each row: key, value and headers."""
    if isinstance(read, FewRows):
        return read.sizes
    lengths: list[int] = pc.add(_lengths(read.column("key")), _lengths(read.column("value"))).to_pylist()
    names, values = read.column("header_keys"), read.column("header_values")
    if not len(names.flatten()) and not len(values.flatten()):
        return lengths
    headers = zip(names.to_pylist(), values.to_pylist(), strict=True)
    own = [sum(len(part or b"") for part in (*(keys or ()), *(contents or ()))) for keys, contents in headers]
    return list(map(add, lengths, own))


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(column), 0)


def split(read: pa.RecordBatch | FewRows, rows: int) -> Sequence[pa.RecordBatch | FewRows]:
    """Return parts of at most `rows` rows, the oldest first: rows of about the same age lie together in the table."""
    if isinstance(read, OrderedRows) and len(read.found) <= rows:
        return [read]
    if isinstance(read, FewRows):
        found = sorted(read.found, key=itemgetter(0))
        return [FewRows(found[start : start + rows]) for start in range(0, len(found), rows)]
    batch = read.sort_by("id") if read.num_rows > rows else read
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]
