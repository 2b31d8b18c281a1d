"""An outbox in Postgres: the adapter of `db.outbox_store`. The contracts are in that module."""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any

import psycopg

from thresher.core.secrets import SecretText
from thresher.db.catalog import Relation
from thresher.db.control import Incarnation
from thresher.db.lock_holder import LockHolder
from thresher.db.names import TableName
from thresher.db.outbox_store import OutboxBacklog, Settling
from thresher.db.postgres.backlog import read_backlog
from thresher.db.postgres.catalog import read_relation
from thresher.db.postgres.control import ControlTable, control_table
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.dead_rows import PostgresDeadRows
from thresher.db.postgres.marks import PostgresMarks
from thresher.db.postgres.own_tables.lock_rows import create_missing
from thresher.db.postgres.own_tables.wait_rows import WaitRows
from thresher.db.postgres.pending_reader import PostgresPendingReader, Probe
from thresher.db.postgres.pooler import require_own_processes
from thresher.db.postgres.refusal import no_such_table
from thresher.db.postgres.sessions import (
    Leading,
    connect,
    end_sessions,
    exists,
    explained,
    incarnation,
    lock_holders,
    other_sessions,
    resolved,
)
from thresher.db.postgres.settlement import PostgresSettlement
from thresher.db.postgres.topic_locks import PostgresTopicLocks
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.db.shape import Shape
from thresher.db.statements import statement
from thresher.db.strangers import PARTITIONED

# From connection string and application name to a connection in autocommit.
Connect = Callable[[SecretText, str], psycopg.Connection[Any]]
# Between two looks at the transactions of dispatchers.
_ASK_AGAIN_SECONDS = 0.05


class PostgresSession:
    """A session over one connection in autocommit."""

    def __init__(
        self, connection: psycopg.Connection[Any], outbox: TableName, shape: Shape, settling: Settling
    ) -> None:
        self.connection = connection
        self.outbox = outbox
        self._shape, self._settling = shape, settling

    @cached_property
    def control(self) -> ControlTable:
        """The control rows in the outbox's schema."""
        return ControlTable(self.connection, self.outbox.schema)

    @cached_property
    def waits(self) -> WaitRows:
        """What waits in the shards of the pipelines of the outbox's schema."""
        return WaitRows(self.connection, self.outbox.schema, control_table(self.outbox.schema))

    @cached_property
    def settlement(self) -> PostgresSettlement:
        """Settles rows of the outbox."""
        return PostgresSettlement(self.connection, self.outbox, self._shape, self._settling)

    @cached_property
    def dead_rows(self) -> PostgresDeadRows:
        """The dead-letter table of the outbox."""
        return PostgresDeadRows(self.connection, self.outbox, self._shape)

    def topic_locks(self, *, table: str | None = None) -> PostgresTopicLocks:
        """Return the locks of the outbox's topics."""
        return PostgresTopicLocks(self.connection, self.outbox, self._shape, self.settlement, table)

    def marks(self, relay: str, term: str, *, table: str | None = None) -> PostgresMarks:
        """Return the marks of a relay under a term. With `table`, only rows of that table are marked."""
        return PostgresMarks(self.connection, self.outbox, self._shape, relay, term, table)

    def probe(self, buckets: Collection[int]) -> Probe:
        """Return a cheap probe that tells which of the buckets have pending rows."""
        return Probe(self.connection, self.outbox, self._shape, buckets)

    def relation(self) -> Relation | None:
        """Return the table as the catalog describes it; None if there is none."""
        with explained():
            return read_relation(self.connection, self.outbox)

    def create_tables(self) -> None:
        """Create the tables of control rows, locks, waits and dead rows, if they are missing."""
        self.control.create()
        self.waits.create()
        dead = statement(f"{self._shape.prefix}_dead_create", self.outbox)
        with explained():
            create_missing(self.connection, self.outbox.companion("_dead"), dead, PARTITIONED)

    def incarnation(self) -> Incarnation:
        """Identify the database as it is now. Raises `DatabaseLost` on a standby."""
        return incarnation(self.connection, self.outbox)

    def end_sessions(self, *, starting: str, but: str) -> Sequence[str]:
        """End our other sessions whose application name starts with `starting`, except those that start with `but`."""
        return end_sessions(self.connection, self._leading, starting=starting, but=but)

    def other_sessions(self, *, starting: str, but: str, within_seconds: float | None = None) -> int:
        """Return the number of our other sessions whose application name starts with `starting`, but not with `but`."""
        return other_sessions(self.connection, self._leading, starting=starting, but=but, within_seconds=within_seconds)

    @property
    def _leading(self) -> Leading:
        return Leading(terms=control_table(self.outbox.schema), outbox=self.outbox)

    def await_dispatchers(self, *, first: bool, within_seconds: float) -> None:
        """Wait until every dispatcher that may be sending has ended."""
        deadline = time.monotonic() + within_seconds
        # Those that begin later read the mode that was written before this look.
        waited = self._sending(first)
        while waited:
            if time.monotonic() > deadline:
                raise DatabaseLost(
                    f"{self.outbox} is not relayed yet: dispatchers, or other transactions that lock its rows, have "
                    f"not ended within {within_seconds:.0f} s: {'; '.join(map(str, waited.values()))}"
                )
            time.sleep(_ASK_AGAIN_SECONDS)
            now = self._sending(first)
            waited = {each: holder for each, holder in waited.items() if each in now}

    def _sending(self, first: bool) -> dict[str, LockHolder]:
        values = {"outbox": self.outbox.quoted(), "control": control_table(self.outbox.schema).quoted(), "first": first}
        with explained():
            found = OwnCursor(self.connection).execute(statement("dispatch_sending"), values).fetchall()
        return {
            transaction: LockHolder(pid=pid, user=user, application=name, state=state, seconds=seconds, query=query)
            for transaction, pid, user, name, state, seconds, query in found
        }

    def lock_holders(self, application: str) -> Sequence[LockHolder]:
        """Return the holders of the locks for which the sessions with this application name wait."""
        return lock_holders(self.connection, application)

    def backlog(self) -> OutboxBacklog:
        """Count pending and dead rows."""
        return read_backlog(self.connection, self.outbox, self._shape)

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class PostgresStore:
    """An outbox in Postgres; `make` opens its connections."""

    def __init__(
        self,
        dsn: SecretText,
        outbox: TableName,
        shape: Shape = Shape.THRESHER,
        settling: Settling = Settling.DELETE,
        *,
        make: Connect = connect,
    ) -> None:
        self._dsn, self._outbox, self._shape, self._settling = dsn, outbox, shape, settling
        self._make = make
        # The outbox with its schema, once it was looked up.
        self._placed: TableName | None = None

    def session(self, application: str, *, locate: bool = False, durable: bool = True) -> PostgresSession:
        """Open a connection; with `durable=False` its commits do not wait for the disk."""
        outbox = self._resolved(application)
        connection = self._make(self._dsn, application)
        try:
            if locate:
                self._require_there(connection, outbox)
            if not durable:
                with explained():
                    connection.execute("SET synchronous_commit = off")
        except BaseException:
            connection.close()
            raise
        return PostgresSession(connection, outbox, self._shape, self._settling)

    def require_sessions(self, application: str) -> None:
        """Raise `DatabaseRefused` if a pooler shares sessions among the transactions of several clients."""
        with closing(self._make(self._dsn, application)) as one, closing(self._make(self._dsn, application)) as other:
            require_own_processes(one, other)

    def pending_reader(self, application: str, *, since: str) -> PostgresPendingReader:
        """Open a reader of a shard's buckets, over connections of its own."""
        outbox = self._resolved(application)
        connection = connect(self._dsn, application)
        try:
            return PostgresPendingReader(
                connection,
                self._dsn,
                outbox,
                self._shape,
                application=application,
                since=since,
            )
        except BaseException:
            connection.close()
            raise

    def _resolved(self, application: str) -> TableName:
        """Return the outbox with its schema. It is looked up once."""
        if self._placed is None:
            (self._placed,) = resolved(self._dsn, application, self._outbox)
        return self._placed

    def _require_there(self, connection: psycopg.Connection[Any], outbox: TableName) -> None:
        with explained():
            there = exists(connection, outbox.quoted())
        if not there:
            # It may be created in another schema of the path.
            self._placed = None
            raise DatabaseRefused(no_such_table(self._outbox))
