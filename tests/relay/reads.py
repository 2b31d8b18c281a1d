"""Reads pending rows as the prefetch does: what was read is in flight, by id and create time."""

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from thresher.delivery.stored_rows import FewRows
from thresher.relay.reading.prefetch import versions
from thresher.relay.reading.row_source import ReadRequest, RowSource

Read = Any  # a record batch, or a few rows


def read(
    source: RowSource,
    rows: int,
    size: int,
    in_flight: Mapping[int, int] | None = None,
    held: Collection[str] = (),
    generation: int = 0,
) -> Read | None:
    return source.read(ReadRequest(rows=rows, bytes=size, in_flight=in_flight or {}, held=held, generation=generation))


def ids_of(found: Read) -> list[int]:
    return list(versions(found))


def arrow_of(found: Read) -> pa.RecordBatch:
    return found.batch() if isinstance(found, FewRows) else found
