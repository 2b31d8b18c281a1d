"""Reads the rows of batches as Arrow, through ADBC, over a session of its own: a few megabytes at a time."""

from collections.abc import Generator
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import pyarrow as pa

from thresher.core.secrets import SecretText
from thresher.db.postgres.sessions import explain, session


class RowReader:
    """Connects at the first read, and stays connected. For one thread."""

    def __init__(self, dsn: SecretText, application: str, options: str = "") -> None:
        """`options` are additional server settings of the session."""
        self._dsn, self._application, self._options = dsn, application, options
        self._connection: Any = None

    def read(self, query: str) -> Generator[pa.RecordBatch]:
        """Yield the result of a statement. Raises `DatabaseRefused` or `DatabaseLost`."""
        try:
            if self._connection is None:
                asked = session(self._dsn, self._application, self._options)
                self._connection = adbc_driver_postgresql.dbapi.connect(asked, autocommit=True)
            with self._connection.cursor() as cursor:
                cursor.execute(query)
                yield from cursor.fetch_record_batch()
        except adbc_driver_manager.Error as error:
            raise explain(error.sqlstate, str(error)) from error

    def close(self) -> None:
        """Close the session."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
