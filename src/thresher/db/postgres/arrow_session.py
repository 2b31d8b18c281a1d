"""Fetches many rows as Arrow record batches through ADBC, over a session of its own."""

from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import psycopg
import pyarrow as pa

from thresher.core.secrets import SecretText
from thresher.db.control import require_same
from thresher.db.names import TableName
from thresher.db.postgres.sessions import explain, explained, session
from thresher.db.row_schema import READ_SCHEMA
from thresher.db.statements import statement

# Rows are read in index order or unordered. A plan with a sort is always wrong here, whatever the statistics say.
UNSORTED = "-c enable_sort=off -c enable_incremental_sort=off"


class ArrowSession:
    """Connects at the first fetch. For one thread."""

    def __init__(
        self, dsn: SecretText, outbox: TableName, application: str, connection: psycopg.Connection[Any], since: str
    ) -> None:
        """`connection` is to the same server: it is used to format values as SQL text."""
        self._dsn, self._outbox, self._application, self._since = dsn, outbox, application, since
        self._connection = connection
        self._session: Any = None
        self._by_pages = False

    def fetch(
        self, query: str, wanted: dict[str, Any], *, otherwise: str | None = None, by_pages: bool = False
    ) -> list[pa.RecordBatch]:
        """Return the result of a statement: one batch, or several if the rows exceed the limit of 2 GB per batch.

        If the driver cannot read the result, the statement `otherwise` is executed instead. `by_pages` plans a bitmap
        scan, which reads each page once; otherwise rows are read in index order.
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
        """Close the session."""
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
        """Return a statement with its values inserted as literals: this session takes no parameters."""
        with explained():
            return psycopg.ClientCursor(self._connection).mogrify(query, values)
