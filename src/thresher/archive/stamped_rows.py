"""The stamped rows of an outbox, over one session: which are due, and who may archive them.

One archiver at a time is for thrift, by an advisory lock of the session: the database frees it the moment the session
ends, and no clock is needed. Safety does not rest on it: a row moves in one statement, or under its manifest's lock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from thresher.archive import due_search
from thresher.archive.due_search import Window
from thresher.archive.problem import ArchiverBusy, ArchiveRefused
from thresher.db.names import TableName
from thresher.db.postgres.catalog import read_relation
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import explained, located
from thresher.db.shape import Shape
from thresher.db.statements import statement
from thresher.outbox.schema import check_relation

_LEAST_ID = -(2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class DueRows:
    """Rows for a batch: so many at most, behind one id and up to another, that were stamped longer ago than that."""

    after: int | None
    last: int
    seconds: float
    rows: int

    @property
    def values(self) -> dict[str, Any]:
        """The values of the statement that finds them."""
        return {"after": _behind(self.after), "last": self.last, "seconds": self.seconds, "rows": self.rows}


class StampedRows:
    """Of one outbox in our own shape, over one connection in autocommit. For one thread."""

    def __init__(self, connection: psycopg.Connection[Any], outbox: TableName) -> None:
        """Raises `DatabaseRefused` where there is no such table, and `ArchiveRefused` where it is of another shape."""
        self.connection = connection
        self.outbox = located(connection, outbox)
        with explained():
            relation = read_relation(connection, self.outbox)
        check = check_relation(relation, self.outbox, Shape.THRESHER)
        if relation is None or not check.usable:
            reasons = "; ".join(str(finding) for finding in check.findings if finding.severity == "breaks")
            raise ArchiveRefused(f"{outbox} is no outbox of our own shape, which alone can be archived: {reasons}")
        # The columns' types, by name.
        self.columns: Mapping[str, str] = {name: column.type for name, column in relation.columns.items()}

    def lock(self) -> None:
        """Become the outbox's only archiver. Raises `ArchiverBusy`."""
        with explained():
            row = OwnCursor(self.connection).execute(statement("archive_lock"), [self.outbox.quoted()]).fetchone()
        if row != (True,):
            raise ArchiverBusy(f"another archiver works on {self.outbox}: try again when it has ended")

    def count_due(self, seconds: float) -> int:
        """Return how many rows were stamped longer ago than that."""
        query = statement("archive_count", self.outbox)
        with explained(), self.connection.transaction():
            # The sessions of a relay avoid it; here every row is looked at, and no index helps.
            self.connection.execute("SET LOCAL enable_seqscan = on")
            row = OwnCursor(self.connection).execute(query, {"seconds": seconds}).fetchone()
        return 0 if row is None else int(row[0])

    def look(self, after: int | None, seconds: float) -> Window:
        """Look at the next rows behind an id. The statement is short: it holds back no vacuum."""
        rows = due_search.WINDOW_ROWS
        query = statement("archive_window", self.outbox)
        values = {"after": _behind(after), "seconds": seconds, "rows": rows}
        with explained():
            row = OwnCursor(self.connection).execute(query, values).fetchone()
        seen, last, due, young = row or (0, None, 0, 0)
        return Window(last=last, due=due, young=young, full=seen == rows)

    def due(self) -> str:
        """Return the statement that finds the next rows that are due, as a part of others."""
        return statement("archive_due", self.outbox).rstrip()


def _behind(after: int | None) -> int:
    return _LEAST_ID if after is None else after
