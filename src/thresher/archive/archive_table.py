"""The archive as a table beside the outbox. A batch is one statement: a row is in one of the two tables."""

from collections.abc import Callable
from typing import Any

from psycopg import errors

from thresher.archive.problem import ArchiveRefused
from thresher.archive.stamped_rows import StampedRows, due_values
from thresher.core.errors import PipelineProblem
from thresher.db.names import quoted_name
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import exists, explained, only_one
from thresher.db.statements import statement

# What Postgres keeps of a name.
_IDENTIFIER_BYTES = 63


class ArchiveTable:
    """`<outbox>_archive`. For one thread."""

    def __init__(self, rows: StampedRows) -> None:
        """Create the table, if there is none. Raises `ArchiveRefused` if it has no place for every column."""
        self._rows, self._connection = rows, rows.connection
        outbox, self.name = rows.outbox, rows.outbox.companion("_archive")
        if len(f"{outbox.table}_archive".encode()) > _IDENTIFIER_BYTES:
            raise ArchiveRefused(f"the name of {outbox} is too long for a table <outbox>_archive: archive to files")
        if not exists(self._connection, self.name):
            with only_one(self._connection):
                if not exists(self._connection, self.name):
                    OwnCursor(self._connection).execute(statement("archive_create", outbox))
        with explained():
            there = {each for (each,) in self._execute(statement("archive_columns"), [self.name]).fetchall()}
        if missing := [each for each in rows.columns if each not in there]:
            adding = ", ".join(f"ADD COLUMN {quoted_name(each)} {rows.columns[each]}" for each in missing)
            raise ArchiveRefused(f"{self.name} lacks columns of the outbox: ALTER TABLE {self.name} {adding}")

    def move(
        self, *, after: int | None, seconds: float, rows: int, middle: Callable[[], object] = lambda: None
    ) -> tuple[int, int | None]:
        """Move a batch in one transaction; return how many rows, and the last one's id.

        `middle` is called when all is done and nothing is durable.
        """
        columns = ", ".join(quoted_name(each).replace("%", "%%") for each in self._rows.columns)
        query = statement("archive_move", self._rows.outbox, due=self._rows.due(), columns=columns)
        try:
            with explained(), self._connection.transaction():
                moved = self._execute(query, due_values(after, seconds, rows)).fetchone()
                middle()
        except PipelineProblem as error:
            if isinstance(error.__cause__, errors.UniqueViolation):
                raise ArchiveRefused(
                    f"a row with the same id and create time is in {self.name} already "
                    f"({error.__cause__.diag.message_detail}): look at both, and delete one; nothing was moved"
                ) from error
            raise
        return (0, None) if moved is None else (moved[0], moved[1])

    def _execute(self, query: Any, values: Any) -> OwnCursor:
        cursor = OwnCursor(self._connection)
        cursor.execute(query, values)
        return cursor
