"""Leadership by a lease: a row in a database that expires by that database's clock.

1. A standby reads the row a few times a second, which writes nothing. When the lease has expired, the standby takes it
   by one statement that raises the token: of many standbys that try, one succeeds.
2. The holder renews the lease three times within its length. The holder's own deadline is counted by its monotonic
   clock from before each renewal, so it ends before the row expires. A process that was stopped finds its deadline
   passed before it does anything else.
3. A holder that stops releases the row, and a standby's next read finds it free.
4. If the database's clock is set forward, a lease expires early, and its holder learns that at the next renewal. If it
   is set back, a lease seems to last longer: a standby that has seen it unchanged for twice its length takes it anyway.
5. If the database does not answer before the deadline, the connection is closed.
6. Refused credentials or permissions are waited out for the grace period.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import conninfo, errors

from thresher.core.secrets import SecretText, revealed
from thresher.db import TableName, statement
from thresher.db.names import quoted_name
from thresher.db.postgres.bounded_connection import hang_up
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.dsn import kept_dsn
from thresher.db.postgres.own_tables.lock_rows import create_missing
from thresher.db.postgres.refusal import is_access_refused, is_refused, no_such_table, remedy
from thresher.db.postgres.rights.ddl import literal, policy_ddl, shared_ddl
from thresher.db.postgres.sessions import OWN_PATH, exists, first_schema, schema_of
from thresher.db.problem import DatabaseRefused
from thresher.election.candidacy import Competitor
from thresher.election.lease_session import leader_of, mark_of, session_name
from thresher.election.problem import AccessRefused, ElectionProblem, ElectionRefused
from thresher.election.refusal_grace import RefusalGrace
from thresher.election.tenure import Confirmed, Granted, Withdrawn

_logger = logging.getLogger(__name__)

_LOOK_SECONDS, _SHORTEST_LOOK_SECONDS = 0.2, 0.02
_LONGEST_BACK_OFF_SECONDS = 2.0
_LEAVE_SECONDS = 3.0
# A lease is stale when its row was unchanged for this many times its length.
_STALE_LENGTHS = 2.0
LEASES = "thresher_lease"
TAKEN = "another one holds the lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The lease as it was read, and the seconds left until it expires."""

    holder: str
    token: int
    until: str
    span_seconds: float
    left_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The row as last read, and since when it has been unchanged, by our own clock."""

    row: Row
    since: float

    def of(self, row: Row, now: float) -> "Seen":
        """Return the state after another read of the row."""
        same = (row.token, row.until) == (self.row.token, self.row.until)
        return Seen(row=row, since=self.since if same else now)

    def stale(self, now: float) -> bool:
        """Whether the holder has not renewed the lease for too long, whatever the database's clock says."""
        return now - self.since > _STALE_LENGTHS * max(self.row.span_seconds, _LOOK_SECONDS)


def next_look(row: Row) -> float:
    """Return the seconds until the next read: soon enough to notice a release, and no later than the expiry."""
    return min(_LOOK_SECONDS, max(_SHORTEST_LOOK_SECONDS, row.left_seconds))


class Lease(Competitor):
    """Competes for one row, with one thread and one connection, which is reopened when it is lost.

    The row is in the table `thresher_lease` of `schema`. Without a schema, the search_path decides at the first
    connection, as in SQL. With `beside`, the name of an existing table, it is in the schema of that table.
    """

    waits, goes_on = "the lease waits for its database: %s", "the lease's database answers again"

    def __init__(
        self,
        *,
        dsn: SecretText,
        name: str,
        schema: str | None = None,
        beside: str | None = None,
        seconds: float = 1.5,
        grace_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
        connect: Callable[[], "LeaseConnection"] | None = None,
    ) -> None:
        """`connect` opens the connection to the row; by default, one to `dsn`."""
        super().__init__("lease", clock, _LEAVE_SECONDS, logger or _logger)
        self._dsn, self._name = kept_dsn(dsn), name
        self._schema, self._beside = schema, beside
        self._seconds = seconds
        self._connect = connect or self._open
        self._holder = uuid4()
        # A fencing token, which rises with each holder: stored with data, it shows which holder wrote last.
        self.token: int | None = None
        self._woken = threading.Event()
        self._resigning = False
        # The holder that `leader` describes.
        self._described_holder: str | None = None
        # Whether a statement has succeeded over the current connection.
        self._answered = False
        self._refusal_grace = RefusalGrace(grace_seconds=grace_seconds)

    def resign(self) -> None:
        """Release the lease, and compete again after the others had time to take it."""
        self.handle(Withdrawn())
        self._resigning = True
        self._woken.set()

    def _wake(self) -> None:
        self._woken.set()

    # The lease's own thread

    def _run(self) -> None:
        wait = 0.1
        while not self._stopping.is_set():
            try:
                self._answered = False
                with contextlib.closing(self._connect()) as connection:
                    self._compete(connection)
            except psycopg.Error as error:
                text = " ".join(str(error.diag.message_primary or error).split())
                text += remedy(error.sqlstate, text)
                before = self._refusal_grace
                if problem := self._refused(error, text):
                    self.fail(problem)
                    return
                if self._refusal_grace is not before:
                    wait = self._refusal_grace.wait_seconds
                if self._answered:
                    wait = 0.1
                self._note(text)
                self._stopping.wait(wait)
                wait = min(max(0.1, 2 * wait), _LONGEST_BACK_OFF_SECONDS)
            except ElectionRefused as error:
                self.fail(error)
                return
            except Exception as error:  # noqa: BLE001 - `wait` raises it
                self._log.exception("the lease's thread broke")
                self.fail(ElectionProblem(f"the lease broke, which is a bug: {type(error).__name__}: {error}"))
                return

    def _refused(self, error: psycopg.Error, text: str) -> ElectionRefused | None:
        """Record an error, and return it if somebody has to act on it; None if it is waited out."""
        # A lease table that was dropped, or is missing after a restore, is created again.
        if not is_refused(error.sqlstate, text) or isinstance(error, errors.UndefinedTable):
            return None
        refused = f"the lease {self._name!r} cannot be competed for: {text}"
        if not is_access_refused(error.sqlstate, text):
            return ElectionRefused(refused)
        self._refusal_grace = self._refusal_grace.refused(self.now())
        return AccessRefused(refused) if self._refusal_grace.over else None

    def _went_on(self, since: float) -> None:
        """Record that a statement has succeeded."""
        self._answered = True
        self._refusal_grace = self._refusal_grace.went_on(since, self.now(), leads=self.leader_id is not None)
        if self._refusal_grace.since is None:
            self._note(None)

    def _open(self) -> "LeaseConnection":
        session = session_name(self._name, self._holder)
        connection = LeaseConnection(self._dsn, self._schema, self._beside, self._name, self._seconds, session)
        self._schema = connection.schema
        return connection

    def _compete(self, connection: "LeaseConnection") -> None:
        seen: Seen | None = None
        began = self.now()
        while not self._stopping.is_set():
            if self._resigning:
                self._give_back(connection)
                self._resigning, seen = False, None
                # Long enough for a standby to notice.
                self._stopping.wait(self._seconds)
            elif self.token is not None:
                self._renew(connection, self.token)
                seen = None
            else:
                row = connection.look()
                seen = Seen(row=row, since=self.now()) if seen is None else seen.of(row, self.now())
                self._take_or_pause(connection, seen, began)
                continue
            self._went_on(began)
        self._give_back(connection)

    def _take_or_pause(self, connection: "LeaseConnection", seen: Seen, began: float) -> None:
        asked = self.now()
        row, stale = seen.row, seen.stale(asked)
        if row.left_seconds > 0 and not stale:
            if row.holder != self._described_holder:
                self.leader, self._described_holder = connection.leader(row), row.holder
            self._went_on(began)
            self._pause(next_look(row))
            return
        token = connection.take(self._holder, row, stale=stale)
        self._went_on(began)
        if token is None:
            self._pause(_SHORTEST_LOOK_SECONDS)
            return
        self.token = token
        self.leader = self._described_holder = None
        self.handle(Granted())
        self.handle(Confirmed(until=asked + self._seconds))
        self._pause(self._seconds / 3)

    def _renew(self, connection: "LeaseConnection", token: int) -> None:
        """Renew the lease, and pause. A late renewal begins a new leadership: nobody else held the lease meanwhile."""
        asked = self.now()
        if connection.renew(self._holder, token, min(self._seconds, max(self._seconds / 3, self.until - asked))):
            self.handle(Confirmed(until=asked + self._seconds))
            self._pause(self._seconds / 3)
        else:
            self.token = None
            self.handle(Withdrawn(reason=TAKEN))

    def _give_back(self, connection: "LeaseConnection") -> None:
        if self.token is not None:
            connection.release(self._holder, self.token)
            self.token = None

    def _pause(self, seconds: float) -> None:
        if self._woken.wait(seconds) and not self._stopping.is_set():
            self._woken.clear()


def lease_ddl(schema: str | None) -> str:
    """Return the DDL of the table of leases, for a role that may not create it."""
    leases = TableName(table=LEASES, schema=schema)
    return shared_ddl(statement("lease_create", leases), leases)


def lease_grants(schema: str | None, role: str, *, names: Sequence[str]) -> Iterator[str]:
    """Yield the statements that let a role compete for the leases of these names, and for no other."""
    leases = TableName(table=LEASES, schema=schema)
    own = f"name IN ({', '.join(map(literal, names))})"
    yield f"GRANT SELECT, INSERT, UPDATE (holder, token, until, span) ON {leases} TO {quoted_name(role)};"
    yield policy_ddl(leases, names[0], role, using=own, check=own)


class LeaseConnection:
    """The lease's row, over a connection that is closed if a statement is not answered in time."""

    def __init__(
        self, dsn: SecretText, schema: str | None, beside: str | None, name: str, seconds: float, session: str
    ) -> None:
        self._name, self._seconds = name, seconds
        # The schema of the table of leases, fixed from here on.
        self.schema = schema or self._looked_up(dsn, session, beside)
        self._connection = _connected(_session(dsn, session, seconds))
        try:
            self._table = TableName(table=LEASES, schema=self.schema)
            if beside is not None:
                self._require(TableName(table=beside, schema=self.schema))
            self._make()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def look(self) -> Row:
        """Return the row. A row that was deleted is inserted again."""
        found = self._run("look").fetchone()
        if found is None:
            # Somebody deleted it.
            self._run("insert", holder=uuid4())
            found = self._run("look").fetchone()
        if found is None:
            raise ElectionRefused(
                f"the lease {self._name!r} vanishes from {self._table} as soon as it is inserted: is there a trigger, "
                "a rule or a policy on the table?"
            )
        holder, token, until, span, left = found
        return Row(holder=holder, token=token, until=until, span_seconds=span, left_seconds=left)

    def leader(self, row: Row) -> str:
        """Return a text that names the holder of the lease."""
        found = self._run("holder", mark=mark_of(row.holder), leases=self._table.quoted()).fetchone()
        return leader_of(row.holder, None if found is None else found[0])

    def take(self, holder: UUID, row: Row, *, stale: bool) -> int | None:
        """Take the lease as it was read; return its new token, None if another process was quicker."""
        seen = row.until if stale else None
        found = self._run("take", holder=holder, token=row.token, seen=seen, seconds=self._seconds).fetchone()
        return None if found is None else int(found[0])

    def renew(self, holder: UUID, token: int, within_seconds: float) -> bool:
        """Renew the lease; False if another process has taken it."""
        given = {"holder": holder, "token": token, "seconds": self._seconds}
        return self._run("renew", within_seconds, **given).rowcount == 1

    def release(self, holder: UUID, token: int) -> None:
        """Release the lease, so that another process can take it at once."""
        self._run("release", holder=holder, token=token)

    def _run(self, what: str, within_seconds: float | None = None, **values: Any) -> OwnCursor:
        given: Mapping[str, Any] = {"name": self._name, **values}
        with self._in_time(within_seconds or self._seconds, self._connection):
            cursor = OwnCursor(self._connection)
            cursor.execute(statement(f"lease_{what}", self._table), given)
            return cursor

    def _looked_up(self, dsn: SecretText, session: str, beside: str | None) -> str:
        """Return the schema that the search_path of the role or the connection string chooses."""
        table = TableName(table=beside or LEASES)
        with (
            contextlib.closing(_connected(_session(dsn, session, self._seconds, path=""))) as connection,
            self._in_time(2 * self._seconds, connection),
        ):
            schema = schema_of(connection, table)
            if schema is None and beside is None:
                schema = first_schema(connection)
        if schema is None:
            raise ElectionRefused(no_such_table(table) if beside else "no schema of the search_path exists")
        return schema

    def _require(self, table: TableName) -> None:
        with self._in_time(self._seconds, self._connection):
            there = exists(self._connection, table.quoted())
        if not there:
            raise ElectionRefused(no_such_table(table))

    def _make(self) -> None:
        with self._in_time(2 * self._seconds, self._connection):
            try:
                create_missing(self._connection, self._table.quoted(), lease_ddl(self.schema))
            except DatabaseRefused as error:
                raise ElectionRefused(str(error)) from error

    @staticmethod
    @contextlib.contextmanager
    def _in_time(seconds: float, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Close the connection if the block takes longer than this: the driver itself would wait for ever."""
        timer = threading.Timer(seconds, hang_up, [connection])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _connected(session: str) -> psycopg.Connection[Any]:
    return psycopg.connect(session, autocommit=True, prepare_threshold=0)


def _session(dsn: SecretText, session: str, seconds: float, *, path: str = OWN_PATH) -> str:
    milliseconds = max(100, int(seconds * 1000))
    content = revealed(dsn)
    given = conninfo.conninfo_to_dict(content)
    options = (
        f"{given.get('options') or ''} -c statement_timeout={milliseconds} -c TimeZone=UTC -c DateStyle=ISO "
        "-c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off "
        # A lease that a crash of the database loses is taken again: it need not be durable.
        f"-c synchronous_commit=off -c client_encoding=UTF8 -c jit=off {path}"
    ).strip()
    network = {"connect_timeout": "2", "keepalives_idle": "2", "tcp_user_timeout": str(milliseconds)}
    network = {key: value for key, value in network.items() if key not in given}
    return conninfo.make_conninfo(content, application_name=session, options=options, **network)
