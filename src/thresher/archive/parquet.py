"""Writes an archive's Parquet file as rows come, with checksums, and reads it back after a crash.

It has the columns of the outbox. Columns that were added to the outbox are text.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from thresher.archive.batch import Batch, FileContent

_MOMENT = pa.timestamp("us", tz="UTC")
_TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "create_time": _MOMENT,
    "kafka_topic": pa.string(),
    "kafka_key": pa.binary(),
    "kafka_value": pa.binary(),
    "kafka_header_keys": pa.list_(pa.string()),
    "kafka_header_values": pa.list_(pa.binary()),
    "kafka_partition": pa.int32(),
    "kafka_timestamp": _MOMENT,
    "dispatched_time": _MOMENT,
    "leader_id": pa.string(),
    "bucket": pa.int16(),
}
# The metadata keys for a file's batch and attempt.
_BATCH, _ATTEMPT = b"thresher.batch", b"thresher.attempt"


def write_rows(
    file: BinaryIO,
    batch: Batch,
    columns: Sequence[str],
    batches: Iterable[pa.RecordBatch],
    middle: Callable[[], object] = lambda: None,
) -> FileContent:
    """Write a whole file, and return its content. `middle` is called after each part."""
    files = batch.files
    owner = {_BATCH: str(files.batch), _ATTEMPT: str(files.attempt)}
    schema = pa.schema([(name, _TYPES.get(name, pa.string())) for name in columns], metadata=owner)
    rows: dict[int, int] = {}
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        for each in batches:
            cast = pa.Table.from_batches([each]).cast(schema.remove_metadata()).replace_schema_metadata(owner)
            writer.write_table(cast)
            rows |= _pairs(cast)
            middle()
    return FileContent(batch=str(files.batch), attempt=files.attempt, rows=rows)


def read_content(path: Path) -> FileContent | None:
    """Return the content of a file, after a check of all checksums; None if it is missing or broken."""
    rows: dict[int, int] = {}
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            metadata = file.schema_arrow.metadata or {}
            for batch in file.iter_batches():
                rows |= _pairs(pa.Table.from_batches([batch]))
            return FileContent(
                batch=metadata.get(_BATCH, b"").decode(), attempt=int(metadata.get(_ATTEMPT, b"0")), rows=rows
            )
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return None


def _pairs(table: pa.Table) -> dict[int, int]:
    times = pc.cast(table.column("create_time"), pa.int64())
    return dict(zip(table.column("id").to_pylist(), times.to_pylist(), strict=True))
