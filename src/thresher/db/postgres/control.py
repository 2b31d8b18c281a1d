"""The control rows of one schema in Postgres, over a connection in autocommit."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import psycopg

from thresher.core.secrets import Secret
from thresher.db.control import ControlRow, NewControlRow
from thresher.db.names import TableName
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.own_tables.lock_rows import LockRows, create_missing
from thresher.db.postgres.rights.ddl import Function, literal, shared_ddl
from thresher.db.postgres.sessions import exists, explained
from thresher.db.problem import DatabaseRefused
from thresher.db.statements import statement

# How long a change of an older table may wait for sessions that use it.
_UPGRADE_SECONDS = 2


def control_table(schema: str | None) -> TableName:
    """Return the table of control rows in a schema; without one, the session's search_path decides."""
    return TableName(table="thresher_relay", schema=schema)


def control_ddl(control: TableName) -> str:
    """Return the DDL of the table of control rows."""
    return shared_ddl(statement("control_create", control), control)


def modes_function(outbox: TableName) -> Function:
    """Return the function that tells how an outbox is relayed, to a role that may not see control rows."""
    query = statement("dispatch_mode", control_table(outbox.schema))
    return Function(
        schema=outbox.schema or "",
        name=modes_name(outbox),
        arguments="",
        returns="TABLE (name text, mode text)",
        body=query % literal(outbox.quoted()),
    )


def modes_name(outbox: TableName) -> str:
    """Return the name of that function."""
    return f"{outbox.table}_relays"


class ControlTable:
    """The control rows of a schema."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str | None) -> None:
        self._connection = connection
        self._table = control_table(schema)
        self._locks = LockRows(connection, schema)

    def exists(self) -> bool:
        """Whether there is a table of control rows."""
        with explained():
            return exists(self._connection, self._table.quoted())

    def create(self) -> None:
        """Create this table and that of locks, or add what an older version's table lacks.

        Safe for concurrent callers.
        """
        self._locks.create()
        with explained():
            create_missing(self._connection, self._table.quoted(), control_ddl(self._table))
            if not self.current():
                self._upgrade()

    def read(self, name: str) -> ControlRow | None:
        """Return a pipeline's row; None if the pipeline never ran here."""
        return self._row("control_read", [name])

    def insert(self, row: NewControlRow) -> Sequence[str]:
        """Insert the row unless the name or the outbox has one; return the other names that relay the outbox."""
        self._change("insert", **asdict(row))
        asked = {"outbox": row.outbox, "name": row.name}
        with explained():
            others = OwnCursor(self._connection).execute(statement("control_others", self._table), asked).fetchall()
        return [other for (other,) in others]

    def take(self, name: str, term: str) -> ControlRow | None:
        """Write a new leader's term and return the changed row; None if there is no row."""
        return self._row("control_take", {"name": name, "term": term})

    def lay_out(
        self,
        name: str,
        *,
        term: str,
        mode: str,
        shards: int,
        progress_topic_id: str | None,
        settled_on: str | None = None,
    ) -> bool:
        """Write the layout. Returns False, and writes nothing, if the row has another term."""
        values = {"mode": mode, "shards": shards, "topic_id": progress_topic_id, "settled_on": settled_on}
        return self._change("lay_out", name=name, term=term, **values)

    def rename(self, name: str, *, old: str, outbox: str) -> bool:
        """Let an outbox be relayed under another name; False if the old name does not relay it."""
        values = {"name": name, "old": old, "outbox": outbox}
        with explained():
            try:
                return (
                    OwnCursor(self._connection).execute(statement("control_rename", self._table), values).rowcount > 0
                )
            except psycopg.errors.UniqueViolation as error:
                raise DatabaseRefused(f"the name {name!r} belongs to the relay of another outbox") from error

    def adopt(self, name: str, *, system_id: str) -> bool:
        """Record this database as the row's own and forget the progress topic; False if there is no row."""
        return self._change("adopt", name=name, system_id=system_id)

    def current(self) -> bool:
        """Whether the table has what this version needs."""
        asked = {"table": self._table.quoted()}
        row = OwnCursor(self._connection).execute(statement("control_upgraded"), asked).fetchone()
        return row is not None and bool(row[0])

    def _upgrade(self) -> None:
        change = statement("control_upgrade", self._table)
        try:
            with self._connection.transaction():
                # Other relays of the schema would queue behind this lock request. The next take-over tries again.
                self._connection.execute(f"SET LOCAL lock_timeout = '{_UPGRADE_SECONDS}s'")
                # Several statements cannot be prepared.
                OwnCursor(self._connection).execute(change.encode(), prepare=False)
        except psycopg.errors.UniqueViolation as error:
            raise DatabaseRefused(
                f"{self._table} has two rows for one outbox: {error.diag.message_detail} Remove the row of the relay "
                "that runs no more, as its owner"
            ) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise DatabaseRefused(
                f"{self._table} was made by an earlier version, and this role may not change it: let its owner run "
                f"'{change.strip()}'"
            ) from error

    def _change(self, what: str, **values: Any) -> bool:
        with explained():
            cursor = OwnCursor(self._connection).execute(statement(f"control_{what}", self._table), values)
            return cursor.rowcount > 0

    def _row(self, what: str, values: Any) -> ControlRow | None:
        with explained():
            row = OwnCursor(self._connection).execute(statement(what, self._table), values).fetchone()
        if row is None:
            return None
        outbox, outbox_id, system_id, term, mode, shards, topic_id, term_time, secret, settled_on = row
        return ControlRow(
            outbox=outbox, outbox_id=outbox_id, system_id=system_id, term=term, mode=mode, shards=shards,
            progress_topic_id=topic_id, term_time=term_time, secret=Secret(secret), settled_on=settled_on,
        )  # fmt: skip
