"""Replication slots and publications in Postgres: reading their state, creating and dropping them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg

from thresher.db.log_slots import LogServer, LogSlot, Publication, SlotMark, mark_of
from thresher.db.lsn import lsn_number
from thresher.db.names import TableName, quoted_name
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.refusal import SLOT_RIGHTS
from thresher.db.postgres.replication.emitter import PostgresEmitter
from thresher.db.postgres.sessions import explained
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.db.statements import statement

# Errors that no retry mends: the name is in use or invalid, the slot does not exist or is being read, no slot is free.
_REFUSED = (
    psycopg.errors.DuplicateObject,
    psycopg.errors.InvalidName,
    psycopg.errors.UndefinedObject,
    psycopg.errors.ObjectInUse,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.ConfigurationLimitExceeded,
)


class PostgresSlots:
    """Slots, over one connection in autocommit: a slot cannot be created in a transaction that has written."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def server(self) -> LogServer:
        """Return the server's facts, and whether this user may replicate."""
        row = self._one("log_server")
        assert row is not None  # noqa: S101 - it selects from nothing
        version, wal_level, database, user, may_replicate = row
        return LogServer(
            version=version, wal_level=wal_level, database=database, user=user, may_replicate=may_replicate
        )

    def slot(self, name: str) -> LogSlot | None:
        """Return a slot as it is now; None if there is none of that name."""
        row = self._one("log_slot", [name])
        if row is None:
            return None
        plugin, database, pid, wal_status, invalidation, confirmed, restart, retained, safe, failover = row
        return LogSlot(
            name=name,
            plugin=plugin,
            database=database,
            active_pid=pid,
            wal_status=wal_status,
            invalidation=invalidation,
            confirmed=None if confirmed is None else lsn_number(confirmed),
            restart=None if restart is None else lsn_number(restart),
            retained_bytes=retained,
            safe_bytes=safe,
            failover=failover,
        )

    def create(self, name: str, *, failover: bool) -> None:
        """Create a slot. Waits for open transactions. Raises `DatabaseRefused` if the slot exists already."""
        with _refused(), explained(SLOT_RIGHTS):
            query = statement("log_slot_create_failover" if failover else "log_slot_create")
            OwnCursor(self._connection).execute(query, [name])

    def mark(self, publication: str, table: TableName) -> bool:
        """Note beside a publication that every existing slot streams the inserts of all transactions that begin later.

        False, and nothing is written, if this user does not own the publication, or it has somebody else's comment.
        """
        published = self.published(publication, table)
        row = self._one("log_marked", [publication])
        if row is None or not row[1] or (row[0] and mark_of(row[0]) is None):
            return False
        # In this order: a transaction from this one on commits behind the position.
        end = self._one("tail_log_end")
        assert end is not None  # noqa: S101 - it selects from nothing
        made = SlotMark(published=published, position=lsn_number(end[0]), first_xid=self.next_transaction())
        with explained():
            OwnCursor(self._connection).execute(
                statement("log_mark", publication=quoted_name(publication), note=f"'{made.note}'")
            )
        return True

    def marked(self, publication: str) -> SlotMark | None:
        """Return what `mark` has noted beside a publication; None if it has not."""
        row = self._one("log_marked", [publication])
        return None if row is None else mark_of(row[0])

    def emitter(self, outbox: TableName, placed: TableName | None = None) -> PostgresEmitter:
        """Return the function that writes an outbox's messages to the WAL; `placed` is its name with its schema."""
        return PostgresEmitter(self._connection, outbox, placed)

    def drop(self, name: str) -> None:
        """Drop a slot and release the WAL that was kept for it. Raises `DatabaseRefused` while it is being read."""
        with _refused():
            self._one("log_slot_drop", [name])

    def free(self, name: str, *, but: str = "") -> None:
        """End the session that reads a slot, unless its application name is `but`: a stopped reader never frees it."""
        with explained():
            OwnCursor(self._connection).execute(statement("log_slot_free"), {"slot": name, "but": but})

    def publication(self, name: str, table: TableName | None) -> Publication | None:
        """Return a publication as it is; None if there is none of that name. The table is named with its schema."""
        asked = {
            "name": name,
            "schema": None if table is None else table.schema,
            "table": None if table is None else table.table,
        }
        row = self._one("log_publication", asked)
        if row is None:
            return None
        inserts, includes, row_filter = row
        return Publication(name=name, inserts=inserts, includes_table=includes, row_filter=row_filter)

    def published(self, name: str, table: TableName | None) -> str:
        """Return a text that changes whenever inserts into a table may have bypassed a publication; "" without one."""
        if table is None:
            return ""
        row = self._one("log_identity", {"name": name, "table": table.quoted()})
        return "gone" if row is None else str(row[0])

    def next_transaction(self) -> int:
        """Return the first transaction id that is not assigned yet: every existing slot will stream its commit."""
        row = self._one("log_next_transaction")
        assert row is not None  # noqa: S101 - it selects from nothing
        return int(row[0])

    def create_publication(self, name: str, table: TableName | None) -> None:
        """Create a publication of the inserts into a table; without a table it publishes nothing."""
        with _refused(), explained(SLOT_RIGHTS):
            OwnCursor(self._connection).execute(publication_ddl(name, table))

    def drop_publication(self, name: str) -> None:
        """Drop a publication, if there is one."""
        with explained():
            OwnCursor(self._connection).execute(statement("log_publication_drop", publication=quoted_name(name)))

    def _one(self, name: str, values: Any = None) -> tuple[Any, ...] | None:
        with explained():
            return OwnCursor(self._connection).execute(statement(name), values).fetchone()


def publication_ddl(name: str, table: TableName | None) -> LiteralString:
    """Return the statement that creates a publication."""
    if table is None:
        return statement("log_publication_create_empty", publication=quoted_name(name))
    return statement("log_publication_create", table, publication=quoted_name(name))


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except DatabaseLost as error:
        if isinstance(error.__cause__, _REFUSED):
            raise DatabaseRefused(str(error).replace("failed", "refused", 1)) from error
        raise
