"""A pipeline's sessions in Postgres: how they are opened and ended, and what their errors mean.

A session's application name carries the term, so that a successor can end it. It is never idle in a transaction for
long, and has a time-out on a silent network, so that a vanished database is noticed.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import conninfo

from thresher.core.errors import PipelineProblem
from thresher.db.control import Incarnation
from thresher.db.lock_holder import LockHolder
from thresher.db.names import TableName
from thresher.db.postgres.bounded_connection import BoundedConnection
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.refusal import RIGHTS, is_refused, no_such_table, remedy
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.db.statements import statement

# Pending rows are found by their index, one bucket after another. Every other plan is worse, whatever the statistics
# say, and one plan does for all values.
_OPTIONS = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off "
    "-c plan_cache_mode=force_generic_plan -c max_parallel_workers_per_gather=0 "
    "-c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off "
    "-c idle_in_transaction_session_timeout=15s -c synchronous_commit=on -c TimeZone=UTC -c client_encoding=UTF8"
)
# Limits that a role or a server sets for its applications would end an idle shard's sessions and cancel long
# statements, only for both to begin again. A limit in the connection string is kept.
# How PgBouncer refuses the options of a session.
_POOLER_TEXT = "unsupported startup parameter"
_LIMITS = "-c statement_timeout={milliseconds} -c lock_timeout=0 -c idle_session_timeout=0"
# How much later than the server's own limit an answer may come.
_LATE_SECONDS = 2.0
_NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


def session(dsn: str, application: str, more: str = "", *, statement_seconds: float = 0.0) -> str:
    """Return the connection string of a session; `more` are further options of the server.

    Without a time for each statement, a statement may take as long as it likes.
    """
    given = conninfo.conninfo_to_dict(dsn)
    limits = _LIMITS.format(milliseconds=int(statement_seconds * 1000))
    options = f"{limits} {given.get('options') or ''} {_OPTIONS} {more}".rstrip()
    network = {name: value for name, value in _NETWORK.items() if name not in given}
    return conninfo.make_conninfo(dsn, application_name=application, options=options, **network)


def connect(dsn: str, application: str, more: str = "", **parameters: str) -> psycopg.Connection[Any]:
    """Connect, in autocommit; `more` are further options of the server, `parameters` those of libpq.

    Raises `DatabaseRefused` or `DatabaseLost`.
    """
    with explained():
        return psycopg.connect(conninfo.make_conninfo(session(dsn, application, more), **parameters), autocommit=True)


def connect_within(seconds: float) -> Callable[[str, str], psycopg.Connection[Any]]:
    """Return what connects as `connect` does, for sessions whose every statement is answered within so many seconds.

    The server's own limit ends a statement first, where it can: a session that was only hung up on would go on waiting
    for its lock. After a statement that was not answered in time, the connection is closed and `DatabaseLost` raised.
    """

    def connect_bounded(dsn: str, application: str) -> psycopg.Connection[Any]:
        with explained():
            options = session(dsn, application, statement_seconds=seconds)
            connection = BoundedConnection.connect(options, autocommit=True)
        connection.within_seconds = seconds + _LATE_SECONDS
        return connection

    return connect_bounded


@contextlib.contextmanager
def explained(rights: str = RIGHTS) -> Iterator[None]:
    """Raise the driver's errors as `DatabaseRefused` or `DatabaseLost`; `rights` says where missing ones are found."""
    try:
        yield
    except psycopg.Error as error:
        text = str(error.diag.message_primary or error).strip()
        raise explain(error.sqlstate, " ".join(text.split()), rights) from error


def explain(state: str | None, text: str, rights: str = RIGHTS) -> PipelineProblem:
    """Decide whether somebody has to act, or time may mend it."""
    # A driver may add its whole query, with all of the values.
    text = " ".join(text.partition("Query was:")[0].split())
    if _POOLER_TEXT in text:
        return DatabaseRefused(
            f"a pooler between the relay and Postgres refused: {text}; a relay needs sessions of its own: connect it "
            "to Postgres itself"
        )
    if is_refused(state, text):
        return DatabaseRefused(f"the database refused: {text}{remedy(state, rights)}")
    return DatabaseLost(f"the database failed: {text}")


@contextlib.contextmanager
def only_one(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Run a transaction that no other relay of this database runs at the same time: what it finds missing stays so."""
    with explained(), connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('thresher_relay'))")
        yield


def located(connection: psycopg.Connection[Any], table: TableName) -> TableName:
    """Return the table with its schema, so that the tables beside it are looked for in the same place."""
    with explained():
        row = OwnCursor(connection).execute(statement("table_schema"), [table.quoted()]).fetchone()
    if row is None:
        raise DatabaseRefused(no_such_table(table))
    return TableName(table=table.table, schema=row[0])


def exists(connection: psycopg.Connection[Any], quoted: str) -> bool:
    """Whether a table of that name is there, by the session's search_path."""
    with explained():
        row = OwnCursor(connection).execute("SELECT pg_catalog.to_regclass(%s) IS NOT NULL", [quoted]).fetchone()
    return row is not None and bool(row[0])


def incarnation(connection: psycopg.Connection[Any], table: TableName | None) -> Incarnation:
    """Return which database this is, and which table where there is one. Raises `DatabaseLost` on a standby."""
    with explained():
        asked = [None if table is None else table.quoted()]
        row = OwnCursor(connection).execute(statement("incarnation"), asked).fetchone()
    if row is None:
        raise DatabaseLost("the database did not say which it is")
    system_id, since, standby, now, identity = row
    if standby:
        raise DatabaseLost("the database is a standby: the relay waits for the primary")
    return Incarnation(system_id=system_id, since=since, now=now, table=identity)


def end_sessions(connection: psycopg.Connection[Any], *, starting: str, but: str) -> None:
    """End other sessions whose application name starts so, except with `but`."""
    with explained():
        OwnCursor(connection).execute(statement("sessions_end"), [starting, but])


def other_sessions(
    connection: psycopg.Connection[Any], *, starting: str, but: str, within_seconds: float | None = None
) -> int:
    """Return how many other sessions there are whose application name starts so, except with `but`."""
    with explained():
        row = OwnCursor(connection).execute(statement("sessions_count"), [starting, but, within_seconds]).fetchone()
    return 0 if row is None else int(row[0])


def lock_holders(connection: psycopg.Connection[Any], application: str) -> Sequence[LockHolder]:
    """Return who holds the locks that the sessions with this application name wait for."""
    with explained():
        found = OwnCursor(connection).execute(statement("lock_holders"), [application]).fetchall()
    return [
        LockHolder(pid=pid or None, user=user, application=name, state=state, seconds=seconds, query=query)
        for pid, user, name, state, seconds, query in found
    ]
