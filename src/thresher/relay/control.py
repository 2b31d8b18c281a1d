"""The control row: which relay this is, whose turn it is, and how its shards are laid out."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from thresher.db import TableName, statement
from thresher.db.cursor import OwnCursor
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.relay.database import explained
from thresher.relay.names import control_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """The row as it is."""

    outbox: str
    outbox_id: str
    system_id: str
    term: str
    mode: str
    shards: int
    progress_topic_id: str | None
    term_time: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """Which database of which system it is, and since when it is what it is; and what time it is there, in seconds."""

    system_id: str
    since: str
    now: float


class ControlTable:
    """The control rows beside one outbox, over a connection in autocommit."""

    def __init__(self, connection: psycopg.Connection[Any], outbox: TableName) -> None:
        self._connection = connection
        self._outbox, self._table = outbox, control_table(outbox)

    def read(self, name: str) -> ControlRow | None:
        """Return a relay's row; None if it never ran here."""
        return self._row("control_read", [name])

    def take(self, name: str, term: str) -> ControlRow | None:
        """Write a new leader's term, and return the row as it is from then on; None if there is none."""
        return self._row("control_take", {"name": name, "term": term})

    def _row(self, what: str, values: Any) -> ControlRow | None:
        with explained():
            row = OwnCursor(self._connection).execute(statement(what, self._table), values).fetchone()
        if row is None:
            return None
        outbox, outbox_id, system_id, term, mode, shards, topic_id, term_time = row
        return ControlRow(
            outbox=outbox, outbox_id=outbox_id, system_id=system_id, term=term, mode=mode, shards=shards,
            progress_topic_id=topic_id, term_time=term_time,
        )  # fmt: skip

    def others(self, name: str) -> list[str]:
        """Return under which other names the outbox is relayed."""
        with explained():
            asked = {"outbox": self._outbox.quoted(), "name": name}
            found = OwnCursor(self._connection).execute(statement("control_others", self._table), asked).fetchall()
        return [other for (other,) in found]

    def run(self, what: str, **values: Any) -> int:
        """Execute one of the control statements; return how many rows it changed."""
        with explained():
            return OwnCursor(self._connection).execute(statement(f"control_{what}", self._table), values).rowcount

    def create(self) -> None:
        """Make the table, if it is not there."""
        with explained(), self._connection.transaction():
            # Two that start together would both find nothing there.
            self._connection.execute("SELECT pg_advisory_xact_lock(hashtext('thresher_relay'))")
            if not exists(self._connection, self._table.quoted()):
                OwnCursor(self._connection).execute(statement("control_create", self._table))


def located(connection: psycopg.Connection[Any], outbox: TableName) -> TableName:
    """Return the outbox with its schema, so that what belongs to it is looked for in the same place."""
    with explained():
        row = OwnCursor(connection).execute(statement("table_schema"), [outbox.quoted()]).fetchone()
    if row is None:
        raise DatabaseRefused(
            f"there is no table {outbox}: 'thresher schema create' makes one, or name another with --outbox"
        )
    return TableName(table=outbox.table, schema=row[0])


def exists(connection: psycopg.Connection[Any], quoted: str) -> bool:
    """Whether a table of that name is there, by the session's search_path."""
    row = OwnCursor(connection).execute("SELECT pg_catalog.to_regclass(%s) IS NOT NULL", [quoted]).fetchone()
    return row is not None and bool(row[0])


def incarnation(connection: psycopg.Connection[Any], outbox: TableName) -> Incarnation:
    """Return which database this is. Raises `DatabaseLost` on a standby: rows are only settled on the primary."""
    with explained():
        row = OwnCursor(connection).execute(statement("incarnation"), [outbox.quoted()]).fetchone()
    if row is None:
        raise DatabaseLost("the database did not say which it is")
    system_id, since, standby, now = row
    if standby:
        raise DatabaseLost("the database is a standby: the relay waits for the primary")
    return Incarnation(system_id=system_id, since=since, now=now)


def require_same(since: str, expected: str) -> None:
    """See that it is the database that recovery settled: in one restored since, sent rows are back."""
    if since != expected:
        raise DatabaseLost("the database was restarted or replaced: the shard recovers first")
