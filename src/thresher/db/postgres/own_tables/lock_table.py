"""The table of topic locks: its creation, the rows of a topic, and changes by a lock's holder."""

from typing import Any

import psycopg

from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.own_tables.lock_rows import create_missing
from thresher.db.postgres.sessions import explained
from thresher.db.problem import DatabaseRefused
from thresher.db.statements import statement
from thresher.db.topic_locks import LockLost, TopicLock, lock_name


class LockTable:
    """The table by its quoted name, with that of control rows. Its statements are those of `topic_lock_*.sql`."""

    def __init__(self, connection: psycopg.Connection[Any], name: str, control: str) -> None:
        self._connection, self._name = connection, name
        self._cursor = OwnCursor(connection)
        # The statements have parameters: a percent sign in a name must not look like a parameter.
        self.locks, self._control = name.replace("%", "%%"), control.replace("%", "%%")

    def create(self) -> None:
        """Create the table of locks, or add the columns that it lacks."""
        with explained():
            create_missing(self._connection, self._name, statement("topic_lock_create", locks=self._name))
            row = self._cursor.execute(statement("topic_lock_upgraded"), [self._name]).fetchone()
            if row is None or not row[0]:
                self._upgrade()
            row = self._cursor.execute(statement("topic_lock_unique"), [self._name]).fetchone()
            if row is None or not row[0]:
                raise DatabaseRefused(
                    f"{self._name} may have several rows of one topic, and several processes would lock it: "
                    f"CREATE UNIQUE INDEX ON {self._name} (topic)"
                )

    def _upgrade(self) -> None:
        change = statement("topic_lock_upgrade", locks=self._name)
        try:
            with self._connection.transaction():
                self._connection.execute("SET LOCAL lock_timeout = '2s'")
                self._connection.execute(change)
        except psycopg.errors.InsufficientPrivilege as error:
            raise DatabaseRefused(
                f"{self._name} lacks columns of ours, and this role may not add them: let its owner run "
                f"'{' '.join(change.split())}'"
            ) from error

    def register(self, topic: str, parts: int) -> None:
        """Insert the rows of a topic's locks. The caller excludes others that register."""
        whole = lock_name(topic, 0, 1)
        names = {whole, *(lock_name(topic, part, parts) for part in range(parts))}
        for name in sorted(names):
            values = {"name": name, "parts": parts, "slotted": (name == whole) == (parts == 1)}
            self._cursor.execute(self.statement("register"), values)

    def change(self, what: str, lock: TopicLock, **more: Any) -> None:
        """Change the row of a held lock. Raises `LockLost` if another process has taken it: nothing was changed."""
        with explained():
            changed = self._cursor.execute(self.statement(what), {**held_lock(lock), **more}, prepare=True).rowcount
        if not changed:
            raise lost(lock)

    def statement(self, what: str) -> Any:
        """Return a statement for this table."""
        return statement(f"topic_lock_{what}", locks=self.locks, control=self._control)


def held_lock(lock: TopicLock) -> dict[str, Any]:
    """Return the parameters that name a held lock."""
    return {"name": lock.name, "token": lock.token}


def lost(lock: TopicLock) -> LockLost:
    """Return the error of a lock that another process has taken."""
    return LockLost(f"the lock of topic {lock.name} was taken by another process: this one leaves the topic to it")
