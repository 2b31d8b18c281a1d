"""A pipeline's sessions in Postgres: how they are opened and ended, and what their errors mean.

A session's application name contains the term, so that a successor can end it. Time-outs keep it from being idle in a
transaction for long, and detect a database that is no longer reachable.

A session of ours has a search_path in which nobody can plant an operator, a function, a type or a table. Names of
tables without a schema are looked up once before, by `resolved`.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import conninfo, errors

from thresher.core.errors import PipelineProblem
from thresher.core.secrets import SecretText, revealed
from thresher.db.control import Incarnation
from thresher.db.lock_holder import LockHolder
from thresher.db.names import TableName
from thresher.db.postgres.bounded_connection import BoundedConnection
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.refusal import RIGHTS, is_refused, no_such_table, remedy
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.db.statements import statement

# Pending rows are found by their index, bucket by bucket. Every other plan is worse, whatever the statistics say, and
# one generic plan fits all parameter values.
_OPTIONS = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off "
    "-c plan_cache_mode=force_generic_plan -c max_parallel_workers_per_gather=0 "
    "-c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off "
    "-c idle_in_transaction_session_timeout=15s -c synchronous_commit=on -c TimeZone=UTC -c client_encoding=UTF8"
)
# Objects of the server come first, and temporary ones of the session itself last: no other login can make any of them.
OWN_PATH = "-c search_path=pg_catalog,pg_temp"
# How long the lookup of a name may take.
_LOOK_UP_SECONDS = 30.0
# PgBouncer's error for the options of a session.
_POOLER_TEXT = "unsupported startup parameter"
# Time-outs that a role or a server sets for applications would end an idle shard's sessions and cancel long statements,
# only to have them started again. So they are switched off here; a time-out in the connection string is kept.
_LIMITS = "-c statement_timeout={milliseconds} -c lock_timeout=0 -c idle_session_timeout=0"
# How long after the server's own time-out an answer may still arrive.
_LATE_SECONDS = 2.0
_NETWORK = {
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}


def session(
    dsn: SecretText, application: str, more: str = "", *, statement_seconds: float = 0.0, path: str = OWN_PATH
) -> str:
    """Return the connection string of a session, with its secrets; `more` are further server options.

    Without `statement_seconds`, statements have no time-out. `path` is last, so that no other option overrules it.
    """
    content = revealed(dsn)
    given = conninfo.conninfo_to_dict(content)
    limits = _LIMITS.format(milliseconds=int(statement_seconds * 1000))
    options = f"{limits} {given.get('options') or ''} {_OPTIONS} {more} {path}".rstrip()
    network = {name: value for name, value in _NETWORK.items() if name not in given}
    return conninfo.make_conninfo(content, application_name=application, options=options, **network)


def connect(dsn: SecretText, application: str, more: str = "", **parameters: str) -> psycopg.Connection[Any]:
    """Connect in autocommit; `more` are further server options, `parameters` are libpq's.

    Raises `DatabaseRefused` or `DatabaseLost`.
    """
    with explained():
        return psycopg.connect(conninfo.make_conninfo(session(dsn, application, more), **parameters), autocommit=True)


def connect_within(seconds: float) -> Callable[[SecretText, str], psycopg.Connection[Any]]:
    """Return a function like `connect`, for sessions whose every statement is answered within this time.

    The server's own time-out ends a statement first, if the server is able to: a session whose client only
    disconnected would go on waiting for its lock. If no answer comes in time, the connection is closed and
    `DatabaseLost` is raised.
    """

    def connect_bounded(dsn: SecretText, application: str) -> psycopg.Connection[Any]:
        return _bounded(session(dsn, application, statement_seconds=seconds), seconds)

    return connect_bounded


def _bounded(options: str, seconds: float) -> psycopg.Connection[Any]:
    with explained():
        connection = BoundedConnection.connect(options, autocommit=True)
    connection.within_seconds = seconds + _LATE_SECONDS
    return connection


@contextlib.contextmanager
def explained(rights: str = RIGHTS) -> Iterator[None]:
    """Raise the driver's errors as `DatabaseRefused` or `DatabaseLost`; `rights` says where missing ones are found."""
    try:
        yield
    except psycopg.Error as error:
        text = str(error.diag.message_primary or error).strip()
        raise explain(error.sqlstate, " ".join(text.split()), rights, context=error.diag.context) from error


def explain(state: str | None, text: str, rights: str = RIGHTS, *, context: str | None = None) -> PipelineProblem:
    """Return the error to raise: `DatabaseRefused` if somebody has to act, `DatabaseLost` if a retry may help."""
    # A driver may append the whole query with its values.
    text = " ".join(text.partition("Query was:")[0].split())
    if _POOLER_TEXT in text:
        return DatabaseRefused(
            f"a pooler between the relay and Postgres refused: {text}; a relay needs sessions of its own: connect it "
            "to Postgres itself"
        )
    if is_refused(state, text):
        return DatabaseRefused(f"the database refused: {text}{remedy(state, text, rights, context=context)}")
    return DatabaseLost(f"the database failed: {text}")


def located(connection: psycopg.Connection[Any], table: TableName) -> TableName:
    """Return the table with its schema, so that its companion tables are looked for in the same schema.

    Raises `DatabaseRefused` if there is no such table.
    """
    with explained():
        schema = schema_of(connection, table)
    if schema is None:
        raise DatabaseRefused(no_such_table(table))
    return TableName(table=table.table, schema=schema)


def resolved(dsn: SecretText, application: str, *tables: TableName) -> tuple[TableName, ...]:
    """Return tables with their schemas, for sessions of ours, whose search_path finds no table.

    A name without a schema is looked up in a short session, by the search_path that the connection string, the role,
    the database or the server sets. A table that is not there belongs to the first schema of that path. Raises
    `DatabaseRefused` or `DatabaseLost`.
    """
    if all(table.schema is not None for table in tables):
        return tables
    with contextlib.closing(connect_as_configured(dsn, application)) as connection:
        return placed(connection, *tables)


def connect_as_configured(dsn: SecretText, application: str) -> psycopg.Connection[Any]:
    """Connect in autocommit for a moment, with the search_path of the connection string or the role, to look up names.

    Such a session executes nothing but that. Raises `DatabaseRefused` or `DatabaseLost`.
    """
    options = session(dsn, application, statement_seconds=_LOOK_UP_SECONDS, path="")
    return _bounded(options, _LOOK_UP_SECONDS)


def placed(connection: psycopg.Connection[Any], *tables: TableName) -> tuple[TableName, ...]:
    """Return tables with their schemas, by the search_path of this session, as `resolved` does."""
    with explained():
        found = [table.schema or schema_of(connection, table) or first_schema(connection) for table in tables]
    if None in found:
        raise DatabaseRefused("no schema of the search_path exists, so new tables have no place: name their schema")
    return tuple(TableName(table=table.table, schema=schema) for table, schema in zip(tables, found, strict=True))


def keep_to_own_path(connection: psycopg.Connection[Any]) -> None:
    """Let the rest of an open transaction find nothing that others have planted. A pooler's session stays as it was."""
    with explained():
        use_path(connection, "pg_catalog, pg_temp")


@contextlib.contextmanager
def own_path(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Let a block of an open transaction find nothing that others have planted. Then the path is as before."""
    before = search_path(connection)
    keep_to_own_path(connection)
    yield
    # After an error, the roll-back of the caller's savepoint restores the path.
    use_path(connection, before)


def search_path(connection: psycopg.Connection[Any]) -> str:
    """Return the session's search_path."""
    with explained():
        row = OwnCursor(connection).execute("SELECT pg_catalog.current_setting('search_path')").fetchone()
    return "" if row is None else str(row[0])


def use_path(connection: psycopg.Connection[Any], path: str) -> None:
    """Set the search_path for the rest of an open transaction. Raises the driver's errors."""
    OwnCursor(connection).execute(statement("session_path"), [path])


def schema_of(connection: psycopg.Connection[Any], table: TableName) -> str | None:
    """Return the schema in which a table is found; None if there is none. Raises the driver's errors."""
    row = OwnCursor(connection).execute(statement("table_schema"), [table.quoted()]).fetchone()
    return None if row is None else str(row[0])


def first_schema(connection: psycopg.Connection[Any]) -> str | None:
    """Return the schema in which a table would be created; None if the path has none. Raises the driver's errors."""
    row = OwnCursor(connection).execute("SELECT pg_catalog.current_schema()").fetchone()
    return None if row is None else row[0]


def exists(connection: psycopg.Connection[Any], quoted: str) -> bool:
    """Whether a table of that name exists, by the session's search_path. Raises the driver's errors."""
    row = OwnCursor(connection).execute("SELECT pg_catalog.to_regclass(%s) IS NOT NULL", [quoted]).fetchone()
    return row is not None and bool(row[0])


def incarnation(connection: psycopg.Connection[Any], table: TableName | None) -> Incarnation:
    """Identify the database, and the table if one is given. Raises `DatabaseLost` on a standby."""
    with explained():
        asked = [None if table is None else table.quoted()]
        row = OwnCursor(connection).execute(statement("incarnation"), asked).fetchone()
    if row is None:
        raise DatabaseLost("the database returned no identity")
    system_id, since, standby, now, identity = row
    if standby:
        raise DatabaseLost("the database is a standby: the relay waits for the primary")
    return Incarnation(system_id=system_id, since=since, now=now, table=identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """The tables that a role must be able to update to lead a pipeline: of terms, and the outbox if there is one.

    Any login may give its sessions any name. Only sessions of our own role, or of one with these rights, are ours.
    """

    terms: TableName
    outbox: TableName | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The parameters for `sessions_ours`."""
        return {"terms": self.terms.quoted(), "outbox": None if self.outbox is None else self.outbox.quoted()}


def end_sessions(connection: psycopg.Connection[Any], leading: Leading, *, starting: str, but: str) -> Sequence[str]:
    """End our other sessions whose application name starts with `starting`, except those that start with `but`.

    Returns which sessions this role may not end, each with its role.
    """
    kept: list[str] = []
    with explained():
        for pid, role in _ours(connection, leading, starting, but, None):
            try:
                OwnCursor(connection).execute(statement("session_end"), [pid, starting])
            except errors.InsufficientPrivilege:
                kept.append(f"backend {pid} of role {role}")
    return kept


def other_sessions(
    connection: psycopg.Connection[Any],
    leading: Leading,
    *,
    starting: str,
    but: str,
    within_seconds: float | None = None,
) -> int:
    """Return the number of our other sessions whose application name starts with `starting`, but not with `but`."""
    with explained():
        return len(_ours(connection, leading, starting, but, within_seconds))


def _ours(
    connection: psycopg.Connection[Any], leading: Leading, starting: str, but: str, within_seconds: float | None
) -> list[tuple[Any, ...]]:
    values = {"starting": starting, "but": but, "seconds": within_seconds, **leading.values}
    return OwnCursor(connection).execute(statement("sessions_ours"), values).fetchall()


def lock_holders(connection: psycopg.Connection[Any], application: str) -> Sequence[LockHolder]:
    """Return the holders of the locks for which the sessions with this application name wait."""
    return _holders(connection, "waiting.application_name = %s", application)


def lock_holders_of(connection: psycopg.Connection[Any], pid: int) -> Sequence[LockHolder]:
    """Return the holders of the locks for which one session of this role waits."""
    return _holders(connection, "waiting.pid = %s", pid)


def _holders(connection: psycopg.Connection[Any], which: str, wanted: str | int) -> Sequence[LockHolder]:
    with explained():
        found = OwnCursor(connection).execute(statement("lock_holders", which=which), [wanted]).fetchall()
    return [
        LockHolder(pid=pid or None, user=user, application=name, state=state, seconds=seconds, query=query)
        for pid, user, name, state, seconds, query in found
    ]
