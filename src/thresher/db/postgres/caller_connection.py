"""The connection of a caller, in whose transaction something is to be written: whether it can be.

Nothing here begins, commits or rolls back a transaction of the caller's. Objects of other libraries are known by the
names of their classes, so that none of these libraries is needed.
"""

from typing import Any

from psycopg import Connection
from psycopg.pq import PipelineStatus, TransactionStatus

from thresher.core.errors import InvalidInput, ThresherError

_LATER = "A later version may take it as it is."
_OF_SQLALCHEMY = f"and end the transaction by SQLAlchemy, as ever; the URL begins with postgresql+psycopg://. {_LATER}"
_OF_DJANGO = (
    "within 'with transaction.atomic():', call connection.ensure_connection() and pass connection.connection, which is "
    f"psycopg's where psycopg 3 is installed. {_LATER}"
)
_OF_ASYNC = (
    "pass a psycopg.Connection: open one by psycopg.connect(…), and do the whole transaction in a thread by "
    f"asyncio.to_thread. {_LATER}"
)
_OF_OTHER_DRIVERS = "pass a connection of psycopg 3, from psycopg.connect(…): only it is supported"
# What to pass instead of an object of another class, by its package and its class.
_INSTEAD = {
    ("builtins", "NoneType"): "pass the connection whose transaction this belongs to, from psycopg.connect(…)",
    ("psycopg", "AsyncConnection"): _OF_ASYNC,
    ("psycopg", "Cursor"): "pass the connection that it belongs to: cursor.connection",
    ("psycopg", "AsyncCursor"): _OF_ASYNC,
    ("psycopg_pool", "ConnectionPool"): "take a connection from it: 'with pool.connection() as connection:'",
    ("psycopg_pool", "AsyncConnectionPool"): _OF_ASYNC,
    ("psycopg2", "connection"): _OF_OTHER_DRIVERS,
    ("psycopg2", "cursor"): _OF_OTHER_DRIVERS,
    ("asyncpg", "Connection"): _OF_OTHER_DRIVERS,
    ("sqlalchemy", "Session"): f"pass session.connection().connection.driver_connection, {_OF_SQLALCHEMY}",
    ("sqlalchemy", "scoped_session"): f"pass session.connection().connection.driver_connection, {_OF_SQLALCHEMY}",
    ("sqlalchemy", "Connection"): f"pass connection.connection.driver_connection, {_OF_SQLALCHEMY}",
    ("sqlalchemy", "PoolProxiedConnection"): f"pass its driver_connection, {_OF_SQLALCHEMY}",
    ("sqlalchemy", "Engine"): (
        f"open 'with engine.begin() as connection:' and pass connection.connection.driver_connection, {_OF_SQLALCHEMY}"
    ),
    ("sqlalchemy", "AsyncSession"): _OF_ASYNC,
    ("sqlalchemy", "AsyncConnection"): _OF_ASYNC,
    ("sqlalchemy", "AsyncEngine"): _OF_ASYNC,
    ("django", "ConnectionProxy"): _OF_DJANGO,
    ("django", "BaseDatabaseWrapper"): _OF_DJANGO,
}


class NotInTransaction(ThresherError):  # noqa: N818
    """The connection is in autocommit and outside a transaction: what is written would not be tied to anything."""


class UnsupportedConnection(InvalidInput):
    """Not a psycopg 3 `Connection`. The message says what to pass instead, where that is known."""


def require_connection(connection: object) -> Connection[Any]:
    """Return a connection. Raises `UnsupportedConnection`."""
    if not isinstance(connection, Connection):
        raise UnsupportedConnection(
            f"a psycopg Connection is needed, not {_name(type(connection))}{_advice(type(connection))}"
        )
    return connection


def _name(kind: type) -> str:
    package = kind.__module__.partition(".")[0]
    return kind.__qualname__ if package == "builtins" else f"{package}'s {kind.__qualname__}"


def _advice(kind: type) -> str:
    """Return what to pass instead of an object of the class, or of one that it inherits from."""
    for each in kind.__mro__:
        if advice := _INSTEAD.get((each.__module__.partition(".")[0], each.__name__)):
            return f": {advice}"
    return ""


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
