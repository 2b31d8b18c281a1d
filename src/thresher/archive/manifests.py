"""The manifests of archive files, in the outbox's own database: the rows of each batch, and its state.

An archiver that removes rows, or begins another attempt, locks the manifest and checks that it still has its own
attempt, in the same transaction. So an archiver that was suspended and superseded changes nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import psycopg

from thresher.archive.batch import Batch, BatchFiles, stem_of
from thresher.archive.directory import ArchiveDirectory
from thresher.archive.problem import ArchiverBusy, ArchiveRefused
from thresher.archive.stamped_rows import DueRows, StampedRows
from thresher.db.names import TableName, quoted_name
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.own_tables.lock_rows import create_missing
from thresher.db.postgres.rights.ddl import shared_ddl
from thresher.db.postgres.sessions import exists, explained
from thresher.db.statements import statement

BATCHES = "thresher_archive_batches"
# Columns by how a Parquet file holds them: as they are; as times within its range; as arrays of one dimension. All
# other columns become text.
_PLAIN = frozenset({"id", "kafka_topic", "kafka_key", "kafka_value", "kafka_partition", "bucket"})
_TIMES = frozenset({"create_time", "kafka_timestamp", "dispatched_time"})
_ARRAYS = frozenset({"kafka_header_keys", "kafka_header_values"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """`rows` rows of a batch were removed from the outbox, durably; `gone` others had been removed before."""

    rows: int
    gone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Nothing was removed: `rows` rows differ from those in the file."""

    rows: int


class Manifests:
    """The manifests of one outbox. For one thread."""

    def __init__(self, rows: StampedRows) -> None:
        self._rows, self._connection = rows, rows.connection
        self._outbox = rows.outbox
        self.table = TableName(table=BATCHES, schema=rows.outbox.schema)

    def create(self) -> None:
        """Create the table if it is missing."""
        with explained():
            create_missing(self._connection, self.table.quoted(), _ddl(self.table))

    def exist(self) -> bool:
        """Whether there is a table of manifests."""
        with explained():
            return exists(self._connection, self.table.quoted())

    def directory_id(self, path: Path) -> UUID | None:
        """Return the id of the last directory that was used at a path, by any outbox; None if there was none."""
        with explained():
            row = self._execute("archive_directory", [str(path)]).fetchone()
        return None if row is None else row[0]

    def record(self, directory: ArchiveDirectory) -> None:
        """Record durably that this is the directory at its path from now on. The record is a batch without rows."""
        with explained():
            self._execute("archive_record", self._place(directory))

    def begin(self, directory: ArchiveDirectory, due: DueRows) -> Batch | None:
        """Write the manifest of the next batch, durably; None if no row is due."""
        values = {**due.values, **self._place(directory)}
        with explained():
            row = self._execute("archive_begin", values, due=self._rows.due()).fetchone()
        return None if row is None else self.read(row[0])

    def unfinished(self) -> list[UUID]:
        """Return the batches whose rows are still in the outbox, the oldest first."""
        with explained():
            return [each for (each,) in self._execute("archive_open", [self._outbox.quoted()]).fetchall()]

    def read(self, batch: UUID) -> Batch | None:
        """Return a batch whose rows are still in the outbox; None if they are not."""
        with explained():
            row = self._execute("archive_manifest", [batch]).fetchone()
        if row is None:
            return None
        *files, ids, times = row
        return Batch(files=_files(batch, *files), rows=dict(zip(ids, times, strict=True)))

    def superseded(self) -> Iterator[tuple[BatchFiles, bool]]:
        """Yield the batches whose earlier attempts may have left files, and whether they are finished."""
        with explained():
            rows = self._execute("archive_superseded", [self._outbox.quoted()]).fetchall()
        for *files, finished in rows:
            yield _files(*files), finished

    def remove(
        self, batch: Batch, absent: tuple[int, ...], middle: Callable[[], object] = lambda: None
    ) -> Removed | Changed:
        """Remove the rows of a batch from the outbox and finish its manifest, in one transaction.

        Raises `ArchiverBusy`, and changes nothing, if another archiver has taken the batch over; and `ArchiveRefused`
        if a trigger keeps rows. `middle` is called just before the commit; if it raises, nothing is changed.
        """
        values = {"batch": batch.files.batch, "absent": list(absent)}
        with explained(), self._connection.transaction() as transaction:
            self._hold(batch)
            removed = self._execute("archive_remove", values).rowcount
            gone = len(batch.rows) - removed
            left, kept = (self._execute("archive_left", values).fetchone() if gone else None) or (0, 0)
            if kept:
                raise ArchiveRefused(
                    f"{kept} rows of {self._outbox} are in an archive's file, and could not be removed: is there a "
                    "trigger, a rule or a policy that keeps them?"
                )
            outcome = Changed(rows=left) if left else Removed(rows=removed, gone=gone)
            if isinstance(outcome, Changed):
                raise psycopg.Rollback(transaction)
            self._finish(batch, sorted(batch.rows.keys() - set(absent)))
            middle()
        return outcome

    def forget(self, batch: Batch) -> None:
        """Finish a batch that has no rows, and no file. Raises `ArchiverBusy`."""
        with explained(), self._connection.transaction():
            self._hold(batch)
            self._finish(batch, [])

    def renew(self, batch: Batch) -> Batch:
        """Begin another attempt, with the rows that are unchanged since the manifest. Raises `ArchiverBusy`."""
        with explained(), self._connection.transaction():
            self._hold(batch)
            self._execute("archive_renew", {"batch": batch.files.batch})
        renewed = self.read(batch.files.batch)
        if renewed is None:
            raise _taken_over(batch)
        return renewed

    def rows_query(self, batch: Batch) -> str:
        """Return the statement that reads a batch's rows in the form of the file. It has no parameters."""
        expressions = ", ".join(f"{_expression(name)} AS {_escaped(name)}" for name in self._rows.columns)
        query = self._statement("archive_rows", expressions=expressions)
        with explained():
            return psycopg.ClientCursor(self._connection).mogrify(query, _identity(batch))

    def _place(self, directory: ArchiveDirectory) -> dict[str, Any]:
        return {
            "outbox": self._outbox.quoted(),
            "directory": str(directory.path),
            "directory_id": directory.id,
            "stem": stem_of(self._outbox),
        }

    def _hold(self, batch: Batch) -> None:
        if self._execute("archive_hold", _identity(batch)).fetchone() is None:
            raise _taken_over(batch)

    def _finish(self, batch: Batch, ids: list[int]) -> None:
        first, last = (ids[0], ids[-1]) if ids else (None, None)
        values = {"batch": batch.files.batch, "rows": len(ids), "first": first, "last": last}
        self._execute("archive_finish", values)

    def _statement(self, name: str, **parts: str) -> LiteralString:
        batches = self.table.quoted().replace("%", "%%")
        return statement(name, self._outbox, batches=batches, **parts)

    def _execute(self, name: str, values: Any, **parts: str) -> OwnCursor:
        cursor = OwnCursor(self._connection)
        cursor.execute(self._statement(name, **parts), values)
        return cursor


def archive_ddl(outbox: TableName) -> list[str]:
    """Return the DDL of the tables that an archive uses, for a role that may not create them."""
    return [
        statement("archive_create", outbox),
        _ddl(TableName(table=BATCHES, schema=outbox.schema)),
    ]


def _ddl(batches: TableName) -> str:
    return shared_ddl(statement("archive_batches_create", batches), batches)


def _files(batch: UUID, directory: str, directory_id: UUID, stem: str, attempt: int) -> BatchFiles:
    return BatchFiles(batch=batch, directory=Path(directory), directory_id=directory_id, stem=stem, attempt=attempt)


def _identity(batch: Batch) -> dict[str, Any]:
    return {"batch": batch.files.batch, "attempt": batch.files.attempt}


def _taken_over(batch: Batch) -> ArchiverBusy:
    return ArchiverBusy(f"another archiver has taken over the batch {batch.files.batch}: this one removed nothing")


def _escaped(name: str) -> str:
    """Return a column's name for a statement with parameters."""
    return quoted_name(name).replace("%", "%%")


def _expression(name: str) -> str:
    column = f"o.{_escaped(name)}"
    if name in _PLAIN:
        return column
    if name in _TIMES:
        # `greatest` and `least` ignore NULLs.
        return f"CASE WHEN {column} IS NOT NULL THEN greatest('0001-01-02', least('9999-12-30', {column})) END"
    if name in _ARRAYS:
        return f"CASE array_ndims({column}) WHEN 1 THEN {column}[:] ELSE ARRAY(SELECT unnest({column})) END"
    return f"{column}::text"
