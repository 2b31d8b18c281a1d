"""A batch of the archive: its manifest, the names of its files, and the decision what is to be done for it next.

1. The manifest names the rows. It is committed before the file is begun.
2. The file is complete when it has its name: it was flushed to the disk before.
3. Only rows that are in the complete file are removed, in the transaction that finishes the manifest.
4. An attempt whose file is not complete is not gone on with: its archiver may still be alive, and write on. The next
   attempt has another name, and files of earlier ones are removed.
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
    """The files that attempts at one batch have left, or may have."""

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
        """The names of the files of earlier attempts, whole or not."""
        for attempt in range(1, self.attempt):
            yield _name(self, attempt)
            yield _name(self, attempt) + PART


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A manifest whose rows have not left the outbox. Create times are in microseconds since 1970, by id."""

    files: BatchFiles
    rows: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContent:
    """The content of a file that is complete: of which attempt at which batch it says to be, and its rows."""

    batch: str
    attempt: int
    rows: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Write:
    """No file of the current attempt is complete."""


@dataclass(frozen=True, slots=True)
class Remove:
    """The file is complete: its rows can leave the outbox. `absent` are ids of the manifest that are not in it."""

    absent: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Nobody left a row of the batch to be archived: it needs no file."""


def next_step(batch: Batch, found: FileContent | None) -> Write | Remove | Forget:
    """Decide by the manifest, and by the file of the current attempt that was found complete, if one was."""
    if not batch.rows:
        return Forget()
    if found is None or (found.batch, found.attempt) != (str(batch.files.batch), batch.files.attempt):
        return Write()
    if not found.rows.items() <= batch.rows.items():
        return Write()
    return Remove(tuple(sorted(batch.rows.keys() - found.rows.keys())))


def stem_of(outbox: TableName) -> str:
    """Return how names of an outbox's files begin: its own, without anything that a file's name cannot have."""
    return quote(outbox.table, safe="")


def _name(files: BatchFiles, attempt: int) -> str:
    return f"{files.stem}-{files.batch.hex}-{attempt}.parquet"
