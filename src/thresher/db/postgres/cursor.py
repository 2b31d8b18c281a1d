"""A cursor that works the same whatever the caller's connection is configured for.

A caller's connection may have another cursor class, row factory or type adapters, or a session with other rules for
backslashes; what the writer stores must not depend on them. Arrays are sent in binary format, encoded by `arrays`.
"""

from typing import Any

import psycopg
from psycopg import Connection, Cursor
from psycopg.adapt import AdaptersMap, Dumper
from psycopg.pq import Format
from psycopg.rows import TupleRow, tuple_row


class TextArray(bytes):
    """A `text[]` in binary format."""


class ByteaArray(bytes):
    """A `bytea[]` in binary format."""


class BigintArray(bytes):
    """A `bigint[]` in binary format."""


class TimestampArray(bytes):
    """A `timestamptz[]` in binary format."""


class _TextArrayDumper(Dumper):
    format = Format.BINARY
    oid = psycopg.adapters.types["text"].array_oid

    def dump(self, obj: Any) -> bytes:
        return bytes(obj)


class _ByteaArrayDumper(_TextArrayDumper):
    oid = psycopg.adapters.types["bytea"].array_oid


class _BigintArrayDumper(_TextArrayDumper):
    oid = psycopg.adapters.types["int8"].array_oid


class _TimestampArrayDumper(_TextArrayDumper):
    oid = psycopg.adapters.types["timestamptz"].array_oid


_ADAPTERS = AdaptersMap(psycopg.adapters)
_ADAPTERS.register_dumper(TextArray, _TextArrayDumper)
_ADAPTERS.register_dumper(ByteaArray, _ByteaArrayDumper)
_ADAPTERS.register_dumper(BigintArray, _BigintArrayDumper)
_ADAPTERS.register_dumper(TimestampArray, _TimestampArrayDumper)


class OwnCursor(Cursor[TupleRow]):
    """A plain server-side-parameter cursor with tuples for rows and the driver's own adapters."""

    def __init__(self, connection: Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)

    @property
    def adapters(self) -> AdaptersMap:
        """The driver's adapters, not those of the connection."""
        return _ADAPTERS
