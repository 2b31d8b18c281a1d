"""The stamped rows of an outbox, over one session: which of them are due, and the lock for archiving them.

A lock of the session allows one archiver at a time, to save work. It ends with the session. Safety does not depend on
it: a row moves in one statement, or under the lock of its manifest.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from thresher.archive import due_search
from thresher.archive.due_search import Window
from thresher.archive.problem import ArchiverBusy, ArchiveRefused
from thresher.db.names import TableName
from thresher.db.postgres.catalog import read_relation
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.own_tables.lock_rows import LockRows
from thresher.db.postgres.sessions import explained, located
from thresher.db.shape import Shape
from thresher.db.statements import statement
from thresher.outbox.schema import check_relation

_LEAST_ID = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRows:
    """Rows for a batch: at most `rows`, with ids after `after` and up to `last`, stamped more than `seconds` ago."""

    after: int | None
    last: int
    seconds: float
    rows: int

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of the statement that finds them."""
        return {"after": _behind(self.after), "last": self.last, "seconds": self.seconds, "rows": self.rows}


class StampedRows:
    """The stamped rows of one outbox in our own shape, over one connection in autocommit. For one thread."""

    def __init__(self, connection: psycopg.Connection[Any], outbox: TableName) -> None:
        """Raises `DatabaseRefused` where there is no such table, and `ArchiveRefused` where it is of another shape."""
        self.connection = connection
        self.outbox = located(connection, outbox)
        with explained():
            relation = read_relation(connection, self.outbox)
        check = check_relation(relation, self.outbox, Shape.THRESHER)
        if relation is None or not check.usable:
            reasons = "; ".join(str(finding) for finding in check.findings if finding.severity == "breaks")
            raise ArchiveRefused(
                f"only an outbox in Thresher's own shape can be archived, and {outbox} is not: {reasons}"
            )
        # Column → its type.
        self.columns: Mapping[str, str] = {name: column.type for name, column in relation.columns.items()}

    @contextmanager
    def only_archiver(self) -> Iterator[None]:
        """Be the outbox's only archiver while the block runs. Raises `ArchiverBusy` if another one works."""
        locks = LockRows(self.connection, self.outbox.schema)
        locks.create()
        with locks.held(f"archive {self.outbox.quoted()}") as held:
            if not held:
                raise ArchiverBusy(f"another archiver works on {self.outbox}: try again when it has ended")
            yield

    def count_due(self, seconds: float) -> int:
        """Return how many rows were stamped more than `seconds` ago."""
        query = statement("archive_count", self.outbox)
        with explained(), self.connection.transaction():
            # Our sessions switch sequential scans off; here every row is counted, and no index helps.
            self.connection.execute("SET LOCAL enable_seqscan = on")
            row = OwnCursor(self.connection).execute(query, {"seconds": seconds}).fetchone()
        return 0 if row is None else int(row[0])

    def look(self, after: int | None, seconds: float) -> Window:
        """Return the next window of rows after an id. The statement is short, so it does not hold back vacuum."""
        rows = due_search.WINDOW_ROWS
        query = statement("archive_window", self.outbox)
        values = {"after": _behind(after), "seconds": seconds, "rows": rows}
        with explained():
            row = OwnCursor(self.connection).execute(query, values).fetchone()
        seen, last, due, young = row or (0, None, 0, 0)
        return Window(last=last, due=due, young=young, full=seen == rows)

    def due(self) -> str:
        """Return the statement that finds the next due rows, for use inside other statements."""
        return statement("archive_due", self.outbox).rstrip()


def _behind(after: int | None) -> int:
    return _LEAST_ID if after is None else after
