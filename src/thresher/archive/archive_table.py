"""The archive as a table beside the outbox. One statement moves a batch: a row is always in exactly one table."""

from collections.abc import Callable, Iterator
from typing import Any

from psycopg import errors

from thresher.archive.problem import ArchiveRefused
from thresher.archive.stamped_rows import DueRows, StampedRows
from thresher.core.errors import PipelineProblem
from thresher.db.names import quoted_name
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.own_tables.lock_rows import create_missing
from thresher.db.postgres.sessions import explained
from thresher.db.statements import statement
from thresher.db.strangers import PARTITIONED

# Postgres truncates longer names.
_IDENTIFIER_BYTES = 63
# relkind of tables and partitioned tables in pg_class, and relpersistence of those in the write-ahead log.
_TABLES, _LOGGED = frozenset("rp"), "p"


class ArchiveTable:
    """`<outbox>_archive`. For one thread."""

    def __init__(self, rows: StampedRows) -> None:
        """Create the table if it is missing. Raises `ArchiveRefused` if it would not keep every row durably."""
        self._rows, self._connection = rows, rows.connection
        outbox, self.name = rows.outbox, rows.outbox.companion("_archive")
        if len(f"{outbox.table}_archive".encode()) > _IDENTIFIER_BYTES:
            raise ArchiveRefused(f"the name of {outbox} is too long for a table <outbox>_archive: archive to files")
        with explained():
            # The outbox may have further columns.
            adding = ", ".join(
                f"ADD COLUMN IF NOT EXISTS {quoted_name(each)} {rows.columns[each]}" for each in rows.columns
            )
            made = f"{statement('archive_create', outbox)}\nALTER TABLE {self.name} {adding};"
            create_missing(self._connection, self.name, made, PARTITIONED)
            there = {each for (each,) in self._execute(statement("archive_columns"), [self.name]).fetchall()}
        if reasons := ", ".join(self._reasons()):
            raise ArchiveRefused(f"{self.name} does not keep rows durably: {reasons}; change it, or archive to files")
        if missing := [each for each in rows.columns if each not in there]:
            adding = ", ".join(f"ADD COLUMN {quoted_name(each)} {rows.columns[each]}" for each in missing)
            raise ArchiveRefused(f"{self.name} lacks columns of the outbox: ALTER TABLE {self.name} {adding}")

    def move(self, due: DueRows, middle: Callable[[], object] = lambda: None) -> tuple[int, int | None]:
        """Move a batch in one transaction. Return the number of rows, and the id of the last one.

        Raises `ArchiveRefused`, and moves nothing, if the table has not taken every row. `middle` is called just before
        the commit.
        """
        columns = ", ".join(quoted_name(each).replace("%", "%%") for each in self._rows.columns)
        query = statement("archive_move", self._rows.outbox, due=self._rows.due(), columns=columns)
        try:
            with explained(), self._connection.transaction():
                chosen, gone, kept, last = self._execute(query, due.values).fetchone() or (0, 0, 0, None)
                if gone != chosen:
                    raise ArchiveRefused(
                        f"{chosen - gone} of {chosen} rows of {self._rows.outbox} could not be removed, so nothing was "
                        "moved: is there a trigger, a rule or a policy that keeps them?"
                    )
                if gone != kept:
                    raise ArchiveRefused(
                        f"{self.name} has taken {kept} of {gone} rows, so nothing was moved: a trigger skips rows. "
                        "Remove it, or archive to files"
                    )
                middle()
        except PipelineProblem as error:
            if isinstance(error.__cause__, errors.UniqueViolation):
                raise ArchiveRefused(
                    f"a row with the same id and create time is in {self.name} already "
                    f"({error.__cause__.diag.message_detail}), so nothing was moved: compare both, and delete one"
                ) from error
            raise
        return gone, last

    def _reasons(self) -> Iterator[str]:
        """Yield the reasons why the table or one of its partitions could lose rows in a crash, or not store them."""
        with explained():
            found = self._execute(statement("archive_kind"), {"table": self.name}).fetchall()
        for name, kind, persistence, rules in found:
            if kind not in _TABLES:
                yield f"{name} is not a table"
            elif persistence != _LOGGED:
                yield f"{name} is UNLOGGED or temporary"
            elif rules:
                yield f"{name} has rules"

    def _execute(self, query: Any, values: Any) -> OwnCursor:
        cursor = OwnCursor(self._connection)
        cursor.execute(query, values)
        return cursor
