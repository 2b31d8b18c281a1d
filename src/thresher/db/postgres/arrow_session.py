"""Fetches many rows as Arrow, through ADBC, over a session of its own."""

from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import psycopg
import pyarrow as pa

from thresher.db.control import require_same
from thresher.db.names import TableName
from thresher.db.postgres.sessions import explain, explained, session
from thresher.db.row_schema import READ_SCHEMA
from thresher.db.statements import statement

# Rows come in the order of an index, or in none: there is nothing to sort, whatever the statistics say.
UNSORTED = "-c enable_sort=off -c enable_incremental_sort=off"


class ArrowSession:
    """Connects when it is first asked for something. For one thread."""

    def __init__(
        self, dsn: str, outbox: TableName, application: str, connection: psycopg.Connection[Any], since: str
    ) -> None:
        """The connection is one to the same server, which knows how values are written."""
        self._dsn, self._outbox, self._application, self._since = dsn, outbox, application, since
        self._connection = connection
        self._session: Any = None
        self._by_pages = False

    def fetch(
        self, query: str, wanted: dict[str, Any], *, otherwise: str | None = None, by_pages: bool = False
    ) -> list[pa.RecordBatch]:
        """Return what a statement gives; where the driver cannot read that, what the other one does. One batch, or more
        where the rows are larger than one can be: 2 GB.

        Planned to find its rows in the order of an index, or by pages: each is looked at once, and for nothing but the
        rows that the index names.
        """
        text = self._text(query, wanted)
        try:
            self._open()
            self._plan(by_pages)
            table = self._execute(text)
        except adbc_driver_manager.Error as error:
            if otherwise is not None and error.sqlstate is None:
                return self.fetch(otherwise, wanted, by_pages=by_pages)
            raise explain(error.sqlstate, str(error)) from error
        schema = pa.schema([*READ_SCHEMA, *list(table.schema)[len(READ_SCHEMA) :]])
        batches: list[pa.RecordBatch] = table.cast(schema).combine_chunks().to_batches()
        return batches or [pa.RecordBatch.from_pylist([], schema)]

    def close(self) -> None:
        """Let go of the session."""
        if self._session is not None:
            self._session.close()

    def _open(self) -> None:
        if self._session is not None:
            return
        options = session(self._dsn, self._application, UNSORTED)
        self._session = adbc_driver_postgresql.dbapi.connect(options, autocommit=True)
        found = self._execute(self._text(statement("incarnation"), [self._outbox.quoted()]))
        require_same(found.column(1)[0].as_py(), self._since)

    def _plan(self, by_pages: bool) -> None:
        if by_pages != self._by_pages:
            self._execute(self._text(statement("relay_planned"), {"by_pages": by_pages}))
            self._by_pages = by_pages

    def _execute(self, text: str) -> pa.Table:
        with self._session.cursor() as cursor:
            cursor.execute(text)
            return cursor.fetch_arrow_table()

    def _text(self, query: str, values: Any) -> str:
        """Return a statement with its values in it: here it has no others."""
        with explained():
            return psycopg.ClientCursor(self._connection).mogrify(query, values)
