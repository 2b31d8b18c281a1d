"""A batch of the archive: its manifest, the names of its files, and the decision about its next step.

1. The manifest names the rows. It is committed before the file is begun.
2. A file under its final name is complete: it was flushed to disk before the rename.
3. Only rows that are in the complete file are removed, in the transaction that finishes the manifest.
4. An attempt with an incomplete file is never continued: its archiver may still be alive, and writing. The next attempt
   uses another name, and removes the files of earlier ones.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

from thresher.db.names import TableName

PART = ".part"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFiles:
    """The files of all attempts at one batch, as far as they exist."""

    batch: UUID
    directory: Path
    directory_id: UUID
    stem: str
    attempt: int

    @property
    def name(self) -> str:
        """The name of the current attempt's file."""
        return _name(self, self.attempt)

    @property
    def superseded(self) -> Iterator[str]:
        """The names of the files of earlier attempts, complete or not."""
        for attempt in range(1, self.attempt):
            yield _name(self, attempt)
            yield _name(self, attempt) + PART


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A manifest whose rows are still in the outbox: id → create time, in microseconds since 1970."""

    files: BatchFiles
    rows: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """The content of a complete file: batch and attempt from its metadata, and its rows."""

    batch: str
    attempt: int
    rows: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Write:
    """Write a file: the current attempt has no complete one."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the rows from the outbox: the file is complete. `absent` are ids of the manifest that are not in it."""

    absent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Finish the batch without a file: none of its rows is left to be archived."""


def next_step(batch: Batch, found: FileContent | None) -> Write | Remove | Forget:
    """Decide by the manifest and by the current attempt's file. `found` is None if it is not complete."""
    if not batch.rows:
        return Forget()
    if found is None or (found.batch, found.attempt) != (str(batch.files.batch), batch.files.attempt):
        return Write()
    if not found.rows.items() <= batch.rows.items():
        return Write()
    return Remove(tuple(sorted(batch.rows.keys() - found.rows.keys())))


def stem_of(outbox: TableName) -> str:
    """Return the prefix of the names of an outbox's files: the table's name, percent-encoded."""
    return quote(outbox.table, safe="")


def _name(files: BatchFiles, attempt: int) -> str:
    return f"{files.stem}-{files.batch.hex}-{attempt}.parquet"
