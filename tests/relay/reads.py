"""Reads pending rows as the prefetch does: rows that were read are in flight, by id and create time."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pytest

from thresher.db.postgres.arrow_session import ArrowSession
from thresher.delivery.reading.prefetch import versions
from thresher.delivery.reading.row_source import ReadRequest, RowSource
from thresher.delivery.stored_rows import FewRows

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


def count_fetches(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return a counter of the reads from now on, by kind."""
    fetch, kinds = ArrowSession.fetch, Counter[str]()

    def counted(arrow: ArrowSession, query: str, wanted: dict[str, Any], **more: Any) -> Any:
        kinds["window" if "upto" in wanted else "head"] += 1
        return fetch(arrow, query, wanted, **more)

    monkeypatch.setattr(ArrowSession, "fetch", counted)
    return kinds


def ids_of(found: Read) -> list[int]:
    return list(versions(found))


def arrow_of(found: Read) -> pa.RecordBatch:
    return found.batch() if isinstance(found, FewRows) else found
