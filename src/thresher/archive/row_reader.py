"""Reads the rows of a batch as Arrow, through ADBC, over a session of its own: a few megabytes at a time."""

from collections.abc import Generator

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import pyarrow as pa

from thresher.db.postgres.sessions import explain, session


def read_rows(dsn: str, application: str, query: str) -> Generator[pa.RecordBatch]:
    """Yield what a statement gives. Raises `DatabaseRefused` or `DatabaseLost`."""
    try:
        with (
            adbc_driver_postgresql.dbapi.connect(session(dsn, application), autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query)
            yield from cursor.fetch_record_batch()
    except adbc_driver_manager.Error as error:
        raise explain(error.sqlstate, str(error)) from error
