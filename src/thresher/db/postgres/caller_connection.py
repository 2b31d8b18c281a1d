"""The connection of a caller, in whose transaction something is to be written: whether it can be.

Nothing here begins, commits or rolls back a transaction of the caller's.
"""

from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg.pq import PipelineStatus, TransactionStatus

from thresher.core.errors import InvalidInput, ThresherError


class NotInTransaction(ThresherError):  # noqa: N818
    """The connection is in autocommit and outside a transaction: what is written would not be tied to anything."""


class UnsupportedConnection(InvalidInput):
    """Not a psycopg 3 `Connection`."""


def require_connection(connection: object) -> Connection[Any]:
    """Return a connection. Raises `UnsupportedConnection`."""
    if not isinstance(connection, Connection):
        hint = " (its async twin is not supported yet)" if isinstance(connection, AsyncConnection) else ""
        raise UnsupportedConnection(f"a psycopg Connection is needed, not {type(connection).__name__}{hint}")
    return connection


def is_tied(connection: Connection[Any]) -> bool:
    """Whether what is written is part of a transaction of the caller's: open, or begun by the first statement."""
    return not connection.autocommit or in_transaction(connection)


def in_transaction(connection: Connection[Any]) -> bool:
    """Whether a transaction is open."""
    if (
        connection.pgconn.transaction_status == TransactionStatus.ACTIVE
        and connection.pgconn.pipeline_status != PipelineStatus.OFF
    ):
        # Answers are outstanding, and only they tell whether a BEGIN is among them.
        with connection.pipeline() as pipeline:
            pipeline.sync()
    return connection.pgconn.transaction_status in {TransactionStatus.INTRANS, TransactionStatus.INERROR}
