"""The archive's side of the database: one session, which is the only archiver's, and what is done over it.

One archiver at a time is for thrift, by an advisory lock of the session: the database frees it the moment the session
ends, and no clock is needed. Safety rests on the manifest: whoever removes rows locks it and sees its attempt first.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg import errors

from thresher.archive.batch import Batch, BatchFiles, stem_of
from thresher.archive.directory import ArchiveDirectory
from thresher.archive.problem import ArchiverBusy, ArchiveRefused
from thresher.db.names import TableName, quoted_name
from thresher.db.postgres.catalog import read_relation
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import exists, explained, located, only_one
from thresher.db.shape import Shape
from thresher.db.statements import statement
from thresher.outbox.schema import check_relation

BATCHES = "thresher_archive_batches"
# What Postgres keeps of a name.
_IDENTIFIER_BYTES = 63
_LEAST_ID = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """The rows of a batch have left the outbox, durably: so many, and others were gone before."""

    rows: int
    gone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Nothing was removed: so many rows are not as the file has them."""

    rows: int


class ArchiveStore:
    """The archive of one outbox, over one connection in autocommit. For one thread."""

    def __init__(self, connection: psycopg.Connection[Any], outbox: TableName) -> None:
        """Raises `DatabaseRefused` where there is no such table, and `ArchiveRefused` where it is of another shape."""
        self._connection = connection
        self.outbox = located(connection, outbox)
        self.batches = TableName(table=BATCHES, schema=self.outbox.schema)
        with explained():
            relation = read_relation(connection, self.outbox)
        check = check_relation(relation, self.outbox, Shape.THRESHER)
        if relation is None or not check.usable:
            reasons = "; ".join(str(finding) for finding in check.findings if finding.severity == "breaks")
            raise ArchiveRefused(f"{outbox} is no outbox of our own shape, which alone can be archived: {reasons}")
        self.columns: Mapping[str, str] = {name: column.type for name, column in relation.columns.items()}

    def lock(self) -> None:
        """Become the outbox's only archiver. Raises `ArchiverBusy`."""
        with explained():
            row = self._execute("archive_lock", [self.outbox.quoted()]).fetchone()
        if row != (True,):
            raise ArchiverBusy(f"another archiver works on {self.outbox}: try again when it has ended")

    def require_table(self) -> None:
        """Create the archive's table, if there is none. Raises `ArchiveRefused` if it has no place for every column."""
        if len(f"{self.outbox.table}_archive".encode()) > _IDENTIFIER_BYTES:
            raise ArchiveRefused(f"the name of {self.outbox} is too long for a table <outbox>_archive: use files")
        name = self.outbox.companion("_archive")
        if not exists(self._connection, name):
            with only_one(self._connection):
                if not exists(self._connection, name):
                    self._execute("archive_create")
        with explained():
            there = {each for (each,) in self._execute("archive_columns", [name]).fetchall()}
        if missing := [each for each in self.columns if each not in there]:
            adding = ", ".join(f"ADD COLUMN {quoted_name(each)} {self.columns[each]}" for each in missing)
            raise ArchiveRefused(f"{name} lacks columns of the outbox: ALTER TABLE {name} {adding}")

    def require_batches(self) -> None:
        """Create the table of manifests, if there is none."""
        if not self.has_batches():
            with only_one(self._connection):
                if not self.has_batches():
                    self._execute("archive_batches_create", table=self.batches)

    def has_batches(self) -> bool:
        """Whether there is a table of manifests."""
        return exists(self._connection, self.batches.quoted())

    def count_due(self, seconds: float) -> int:
        """Return how many rows were stamped longer ago than that."""
        with explained():
            row = self._execute("archive_count", {"seconds": seconds}).fetchone()
        return 0 if row is None else int(row[0])

    def move(
        self, *, after: int | None, seconds: float, rows: int, middle: Callable[[], object]
    ) -> tuple[int, int | None]:
        """Move a batch to the archive's table in one transaction; return how many rows, and the last one's id."""
        columns = ", ".join(map(_escaped, self.columns))
        try:
            with explained(), self._connection.transaction():
                values = self._due_values(after, seconds, rows)
                moved = self._execute("archive_move", values, due=self._due(), columns=columns).fetchone()
                middle()
        except Exception as error:
            if isinstance(error.__cause__, errors.UniqueViolation):
                raise ArchiveRefused(
                    f"a row with the same id and create time is in {self.outbox.companion('_archive')} already "
                    f"({error.__cause__.diag.message_detail}): look at both, and delete one; nothing was moved"
                ) from error
            raise
        return (0, None) if moved is None else (moved[0], moved[1])

    def begin(self, directory: ArchiveDirectory, *, after: int | None, seconds: float, rows: int) -> Batch | None:
        """Write the manifest of the next batch, durably; None where nothing is due."""
        values = {
            **self._due_values(after, seconds, rows),
            "outbox": self.outbox.quoted(),
            "directory": str(directory.path),
            "directory_id": directory.id,
            "stem": stem_of(self.outbox),
        }
        with explained():
            row = self._execute("archive_begin", values, due=self._due()).fetchone()
        return None if row is None else self.manifest(row[0])

    def open_batches(self) -> list[UUID]:
        """Return the batches whose rows have not left the outbox, the oldest first."""
        with explained():
            return [each for (each,) in self._execute("archive_open", [self.outbox.quoted()]).fetchall()]

    def manifest(self, batch: UUID) -> Batch | None:
        """Return a batch whose rows have not left the outbox; None where they have."""
        with explained():
            row = self._execute("archive_manifest", [batch]).fetchone()
        if row is None:
            return None
        directory, directory_id, stem, attempt, ids, times = row
        files = BatchFiles(
            batch=batch, directory=Path(directory), directory_id=directory_id, stem=stem, attempt=attempt
        )
        return Batch(files=files, rows=dict(zip(ids, times, strict=True)))

    def superseded(self) -> Iterator[BatchFiles]:
        """Yield the batches of which earlier attempts may have left files."""
        with explained():
            rows = self._execute("archive_superseded", [self.outbox.quoted()]).fetchall()
        for batch, directory, directory_id, stem, attempt in rows:
            yield BatchFiles(
                batch=batch, directory=Path(directory), directory_id=directory_id, stem=stem, attempt=attempt
            )

    def remove(self, batch: Batch, absent: tuple[int, ...], middle: Callable[[], object]) -> Removed | Changed:
        """Remove the rows of a batch from the outbox and finish its manifest, in one transaction.

        Raises `ArchiverBusy`, and changes nothing, if another archiver has taken the batch over. `middle` is called
        when all is done and nothing is durable.
        """
        values = {"batch": batch.files.batch, "absent": list(absent)}
        with explained(), self._connection.transaction() as transaction:
            self._hold(batch)
            removed = self._execute("archive_remove", values).rowcount
            row = self._execute("archive_left", values).fetchone()
            left = 0 if row is None else row[0]
            if left:
                raise psycopg.Rollback(transaction)
            kept = [each for each in batch.rows if each not in set(absent)]
            self._finish(batch, rows=len(kept), ids=kept)
            middle()
        return Changed(rows=left) if left else Removed(rows=removed, gone=len(batch.rows) - removed)

    def forget(self, batch: Batch) -> None:
        """Finish a batch that has no rows, and no file."""
        with explained(), self._connection.transaction():
            self._hold(batch)
            self._finish(batch, rows=0, ids=[])

    def renew(self, batch: Batch) -> Batch:
        """Begin another attempt, with the rows that nobody has touched since the manifest. Raises `ArchiverBusy`."""
        with explained(), self._connection.transaction():
            self._hold(batch)
            self._execute("archive_renew", {"batch": batch.files.batch})
        renewed = self.manifest(batch.files.batch)
        if renewed is None:
            raise _taken_over(batch)
        return renewed

    def rows_query(self, batch: Batch) -> str:
        """Return the statement that reads the rows of a batch as its file has them, with its values in it."""
        expressions = ", ".join(f"{_expression(name)} AS {_escaped(name)}" for name in self.columns)
        query = self._statement("archive_rows", expressions=expressions)
        values = {"batch": batch.files.batch, "attempt": batch.files.attempt}
        with explained():
            return psycopg.ClientCursor(self._connection).mogrify(query, values)

    def _hold(self, batch: Batch) -> None:
        values = {"batch": batch.files.batch, "attempt": batch.files.attempt}
        if self._execute("archive_hold", values).fetchone() is None:
            raise _taken_over(batch)

    def _finish(self, batch: Batch, *, rows: int, ids: list[int]) -> None:
        values = {"first": min(ids, default=None), "last": max(ids, default=None), "rows": rows}
        self._execute("archive_finish", {"batch": batch.files.batch, **values})

    def _due(self) -> str:
        return self._statement("archive_due").rstrip()

    def _due_values(self, after: int | None, seconds: float, rows: int) -> dict[str, Any]:
        return {"after": _LEAST_ID if after is None else after, "seconds": seconds, "rows": rows}

    def _statement(self, name: str, table: TableName | None = None, **parts: str) -> LiteralString:
        batches = self.batches.quoted().replace("%", "%%")
        return statement(name, table or self.outbox, batches=batches, **parts)

    def _execute(self, name: str, values: Any = None, *, table: TableName | None = None, **parts: str) -> OwnCursor:
        cursor = OwnCursor(self._connection)
        cursor.execute(self._statement(name, table, **parts), values)
        return cursor


def archive_ddl(outbox: TableName) -> list[str]:
    """Return the DDL of the tables that an archive uses, for where it may not make them itself."""
    return [
        statement("archive_create", outbox),
        statement("archive_batches_create", TableName(table=BATCHES, schema=outbox.schema)),
    ]


def _taken_over(batch: Batch) -> ArchiverBusy:
    return ArchiverBusy(
        f"another archiver has taken over the batch {batch.files.batch}: nothing was removed by this one"
    )


def _escaped(name: str) -> str:
    """Return a column's name in a statement that has parameters."""
    return quoted_name(name).replace("%", "%%")


# As a Parquet file can have them: times that it can hold, arrays of one dimension, and text for what is not known here.
_PLAIN = frozenset({"id", "kafka_topic", "kafka_key", "kafka_value", "kafka_partition", "bucket"})
_TIMES = frozenset({"create_time", "kafka_timestamp", "dispatched_time"})
_ARRAYS = frozenset({"kafka_header_keys", "kafka_header_values"})


def _expression(name: str) -> str:
    column = f"o.{_escaped(name)}"
    if name in _PLAIN:
        return column
    if name in _TIMES:
        # greatest and least leave NULLs out.
        return f"CASE WHEN {column} IS NOT NULL THEN greatest('0001-01-02', least('9999-12-30', {column})) END"
    if name in _ARRAYS:
        return f"CASE array_ndims({column}) WHEN 1 THEN {column}[:] ELSE ARRAY(SELECT unnest({column})) END"
    return f"{column}::text"
