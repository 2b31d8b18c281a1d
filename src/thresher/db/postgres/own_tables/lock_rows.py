"""Locks that only roles with rights on our own tables can take: rows of `thresher_lock`, beside the outbox.

Any login of the server can take an advisory lock, and its key can be read in `pg_locks`. So no lock of ours is one.

1. A lock **for a transaction** is the lock of a row. Such a transaction has a few statements and waits for nothing
   else, so it holds vacuum back for milliseconds. It takes one such lock, and takes it first. A take-over writes no row
   of this table that a transaction could hold.
2. A lock **for a session** is the session's process, start and role, recorded in the row by a short transaction. It
   ends when the session frees it, or is gone. No transaction stays open for it.

Safety rests on neither: they save work, or make two steps one where the table has no constraint for it.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg import errors

from thresher.db.names import TableName
from thresher.db.postgres.catalog import own_table_problems
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.rights.ddl import shared_ddl
from thresher.db.postgres.sessions import exists, explained
from thresher.db.problem import DatabaseRefused
from thresher.db.statements import statement
from thresher.db.strangers import PLAIN

LOCKS = "thresher_lock"


def lock_table(schema: str | None) -> TableName:
    """Return the table of locks in a schema; without one, the session's search_path decides."""
    return TableName(table=LOCKS, schema=schema)


def lock_ddl(locks: TableName) -> str:
    """Return the DDL of the table of locks."""
    return shared_ddl(statement("lock_create", locks), locks)


def create_missing(connection: psycopg.Connection[Any], quoted: str, ddl: str, kinds: str = PLAIN) -> None:
    """Create a table unless there is one. Safe for concurrent callers: the second finds the table of the first.

    Raises `DatabaseRefused` if a stranger could run code by the table that is there, and the driver's errors.
    """
    if not exists(connection, quoted):
        try:
            with connection.transaction():
                # Several statements cannot be prepared.
                OwnCursor(connection).execute(ddl.encode(), prepare=False)
        except (errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation):
            # In a race, the catalog's own indexes report the other's table by the last two.
            if not exists(connection, quoted):
                raise
        except errors.InsufficientPrivilege as error:
            # Postgres names the schema alone. The class stays: an election waits out missing rights.
            why = error.diag.message_primary or error
            raise errors.InsufficientPrivilege(f"there is no table {quoted}, and it cannot be made: {why}") from error
    require_own(connection, quoted, kinds)


def require_own(connection: psycopg.Connection[Any], quoted: str, kinds: str = PLAIN) -> None:
    """Raise `DatabaseRefused` if a stranger could run code with our rights by a table of ours.

    Raises the driver's errors too. In a session of ours.
    """
    if problems := own_table_problems(connection, quoted, kinds):
        raise DatabaseRefused(f"{quoted} is not used: {'; '.join(problems)}")


class LockRows:
    """The locks of one schema, over a connection in autocommit."""

    def __init__(self, connection: psycopg.Connection[Any], schema: str | None) -> None:
        self._connection, self._table = connection, lock_table(schema)

    def create(self) -> None:
        """Create the table if it is missing."""
        with explained():
            create_missing(self._connection, self._table.quoted(), lock_ddl(self._table))

    @contextlib.contextmanager
    def only_one(self, name: str) -> Iterator[None]:
        """Run a short transaction under a lock: no other session runs one under this name meanwhile."""
        with explained(), self._connection.transaction():
            self._execute("enter", name)
            yield

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[bool]:
        """Hold a lock for this session while the block runs; yields False if another session holds it."""
        with self.only_one(name):
            held = self._execute("hold", name).rowcount == 1
        try:
            yield held
        finally:
            # If the session is broken, its end frees the lock.
            with contextlib.suppress(psycopg.Error):
                if held:
                    self._execute("free", name)

    def _execute(self, what: str, name: str) -> OwnCursor:
        cursor = OwnCursor(self._connection)
        cursor.execute(statement(f"lock_{what}", self._table), [name])
        return cursor
