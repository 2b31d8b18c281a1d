"""Leadership by a row in a database, judged by that database's clock.

1. A standby looks at the row a few times a second, which writes nothing, and takes it when it has ended: in one
   statement that raises the token, so that of many who try one succeeds.
2. The holder renews it three times within its length. Its own deadline counts, by its monotonic clock, from before it
   asked: it ends before the row does. A process that was stopped finds it passed before it does anything else.
3. A holder that stops releases the row: the next look of another finds it free.
4. The database's clock may be set. Forward, a lease ends early, and its holder learns that at its next renewal. Back,
   it would seem to last for long: a standby that has seen it unchanged for twice its length takes it nevertheless.
5. A database that does not answer is not waited for beyond the deadline: the connection is given up.
6. Credentials or permissions that are refused are waited out, for the grace.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import conninfo, errors

from thresher.db import TableName, statement
from thresher.db.postgres.bounded_connection import hang_up
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.refusal import is_access_refused, is_refused, no_such_table, remedy
from thresher.election.candidacy import Competitor
from thresher.election.lease_session import leader_of, mark_of, session_name
from thresher.election.patience import Patience
from thresher.election.problem import AccessRefused, ElectionProblem, ElectionRefused
from thresher.election.tenure import Confirmed, Granted, Withdrawn

_logger = logging.getLogger(__name__)

_LOOK_SECONDS, _SHORTEST_LOOK_SECONDS = 0.2, 0.02
_LONGEST_BACK_OFF_SECONDS = 2.0
_LEAVE_SECONDS = 3.0
_PATIENCE = 2.0
LEASES = "thresher_lease"
TAKEN = "another one holds the lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The lease as it was when somebody looked, and for how long it is good."""

    holder: str
    token: int
    until: str
    span_seconds: float
    left_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A row that does not change, and since when by our own clock."""

    row: Row
    since: float

    def of(self, row: Row, now: float) -> "Seen":
        """Return what is known after another look."""
        same = (row.token, row.until) == (self.row.token, self.row.until)
        return Seen(row=row, since=self.since if same else now)

    def stale(self, now: float) -> bool:
        """Whether its holder has been silent for longer than it may, whatever the database's clock says."""
        return now - self.since > _PATIENCE * max(self.row.span_seconds, _LOOK_SECONDS)


def next_look(row: Row) -> float:
    """Return the seconds to wait before looking again: often enough for a release, and just when it ends."""
    return min(_LOOK_SECONDS, max(_SHORTEST_LOOK_SECONDS, row.left_seconds))


class Lease(Competitor):
    """Competes for one row. One thread and one connection, which is made again when it is lost.

    The row is in the table `thresher_lease` of `schema`. Without a schema, the search_path decides, as in SQL. With
    `beside`, the name of a table, it is the schema in which that table is found; the table must be there.
    """

    waits, goes_on = "the lease waits for its database: %s", "the lease's database answers again"

    def __init__(
        self,
        *,
        dsn: str,
        name: str,
        schema: str | None = None,
        beside: str | None = None,
        seconds: float = 1.5,
        grace_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        logger: logging.Logger | None = None,
    ) -> None:
        super().__init__("lease", clock, _LEAVE_SECONDS, logger or _logger)
        self._dsn, self._name = dsn, name
        self._schema, self._beside = schema, beside
        self._seconds = seconds
        self._me = uuid4()
        # Rises with each holder: whoever keeps it with what it writes can tell an older one's from a newer one's.
        self.token: int | None = None
        self._woken = threading.Event()
        self._resigning = False
        # The holder whom `leader` describes.
        self._leaders_id: str | None = None
        # The connection that was made last has done what it was asked for.
        self._answered = False
        self._patience = Patience(grace_seconds=grace_seconds)

    def resign(self) -> None:
        """Give the lease back, and compete again when others had the time to take it."""
        self.tell(Withdrawn())
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
                text = " ".join(str(error.diag.message_primary or error).split()) + remedy(error.sqlstate)
                before = self._patience
                if problem := self._refused(error, text):
                    self.fail(problem)
                    return
                if self._patience is not before:
                    wait = self._patience.wait_seconds
                if self._answered:
                    wait = 0.1
                self._note(text)
                self._stopping.wait(wait)
                wait = min(max(0.1, 2 * wait), _LONGEST_BACK_OFF_SECONDS)
            except ElectionRefused as error:
                self.fail(error)
                return
            except Exception as error:  # noqa: BLE001 - told to whoever waits
                self._log.exception("the lease's thread broke")
                self.fail(ElectionProblem(f"the lease broke, which is a bug: {type(error).__name__}: {error}"))
                return

    def _refused(self, error: psycopg.Error, text: str) -> ElectionRefused | None:
        """Take in an error, and return what somebody has to act on; None if it is waited out."""
        # A table of ours that was dropped, or went with a restore, is made again.
        if not is_refused(error.sqlstate, text) or isinstance(error, errors.UndefinedTable):
            return None
        refused = f"the lease {self._name!r} cannot be competed for: {text}"
        if not is_access_refused(error.sqlstate, text):
            return ElectionRefused(refused)
        self._patience = self._patience.refused(self.now())
        return AccessRefused(refused) if self._patience.over else None

    def _went_on(self, since: float) -> None:
        """Take in that the database has done what it was asked for."""
        self._answered = True
        self._patience = self._patience.went_on(since, self.now(), leads=self.leader_id is not None)
        if self._patience.since is None:
            self._note(None)

    def _connect(self) -> "_Connection":
        session = session_name(self._name, self._me)
        return _Connection(self._dsn, self._schema, self._beside, self._name, self._seconds, session)

    def _compete(self, connection: "_Connection") -> None:
        seen: Seen | None = None
        began = self.now()
        while not self._stopping.is_set():
            if self._resigning:
                self._give_back(connection)
                self._resigning, seen = False, None
                # For as long as another one may take to see it.
                self._stopping.wait(self._seconds)
            elif self.token is not None:
                self._renew(connection, self.token)
                seen = None
            else:
                row = connection.look()
                seen = Seen(row=row, since=self.now()) if seen is None else seen.of(row, self.now())
                self._take_or_rest(connection, seen, began)
                continue
            self._went_on(began)
        self._give_back(connection)

    def _take_or_rest(self, connection: "_Connection", seen: Seen, began: float) -> None:
        asked = self.now()
        row, stale = seen.row, seen.stale(asked)
        if row.left_seconds > 0 and not stale:
            if row.holder != self._leaders_id:
                self.leader, self._leaders_id = connection.leader(row), row.holder
            self._went_on(began)
            self._rest(next_look(row))
            return
        token = connection.take(self._me, row, stale=stale)
        self._went_on(began)
        if token is None:
            self._rest(_SHORTEST_LOOK_SECONDS)
            return
        self.token = token
        self.leader = self._leaders_id = None
        self.tell(Granted())
        self.tell(Confirmed(until=asked + self._seconds))
        self._rest(self._seconds / 3)

    def _renew(self, connection: "_Connection", token: int) -> None:
        """Renew, and rest. A late renewal begins another leadership: nobody else had the lease meanwhile."""
        asked = self.now()
        if connection.renew(self._me, token, min(self._seconds, max(self._seconds / 3, self.until - asked))):
            self.tell(Confirmed(until=asked + self._seconds))
            self._rest(self._seconds / 3)
        else:
            self.token = None
            self.tell(Withdrawn(reason=TAKEN))

    def _give_back(self, connection: "_Connection") -> None:
        if self.token is not None:
            connection.release(self._me, self.token)
            self.token = None

    def _rest(self, seconds: float) -> None:
        if self._woken.wait(seconds) and not self._stopping.is_set():
            self._woken.clear()


class _Connection:
    """The row, over a connection whose every statement is answered in time or ends it."""

    def __init__(
        self, dsn: str, schema: str | None, beside: str | None, name: str, seconds: float, session: str
    ) -> None:
        self._name, self._seconds = name, seconds
        self._connection = psycopg.connect(_session(dsn, session, seconds), autocommit=True, prepare_threshold=0)
        try:
            self._table = TableName(table=LEASES, schema=self._located(schema, beside))
            self._make()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def look(self) -> Row:
        """Return the row as it is."""
        found = self._run("look").fetchone()
        if found is None:
            # Somebody removed it.
            self._run("insert", holder=uuid4())
            found = self._run("look").fetchone()
        if found is None:
            raise ElectionRefused(f"the lease {self._name!r} vanishes from {self._table} as soon as it is made")
        holder, token, until, span, left = found
        return Row(holder=holder, token=token, until=until, span_seconds=span, left_seconds=left)

    def leader(self, row: Row) -> str:
        """Return who holds the lease, for people."""
        found = self._run("holder", mark=mark_of(row.holder)).fetchone()
        return leader_of(row.holder, None if found is None else found[0])

    def take(self, holder: UUID, row: Row, *, stale: bool) -> int | None:
        """Take the lease that was seen; return its token, None if somebody else was quicker."""
        seen = row.until if stale else None
        found = self._run("take", holder=holder, token=row.token, seen=seen, seconds=self._seconds).fetchone()
        return None if found is None else int(found[0])

    def renew(self, holder: UUID, token: int, within_seconds: float) -> bool:
        """Renew; False if it is not ours any more."""
        given = {"holder": holder, "token": token, "seconds": self._seconds}
        return self._run("renew", within_seconds, **given).rowcount == 1

    def release(self, holder: UUID, token: int) -> None:
        """Let another one have it."""
        self._run("release", holder=holder, token=token)

    def _run(self, what: str, within_seconds: float | None = None, **values: Any) -> OwnCursor:
        given: Mapping[str, Any] = {"name": self._name, **values}
        with self._in_time(within_seconds or self._seconds):
            cursor = OwnCursor(self._connection)
            cursor.execute(statement(f"lease_{what}", self._table), given)
            return cursor

    def _located(self, schema: str | None, beside: str | None) -> str | None:
        """Return the schema of the table of leases; None where the search_path decides."""
        if beside is None:
            return schema
        table = TableName(table=beside, schema=schema)
        with self._in_time(self._seconds):
            row = OwnCursor(self._connection).execute(statement("table_schema"), [table.quoted()]).fetchone()
        if row is None:
            raise ElectionRefused(no_such_table(table))
        return str(row[0])

    def _make(self) -> None:
        with self._in_time(2 * self._seconds):
            there = OwnCursor(self._connection).execute(
                "SELECT pg_catalog.to_regclass(%s) IS NOT NULL", [self._table.quoted()]
            )
            if there.fetchone() != (True,):
                with self._connection.transaction():
                    # Two that start together would both find nothing there.
                    self._connection.execute("SELECT pg_advisory_xact_lock(hashtext('thresher_lease'))")
                    OwnCursor(self._connection).execute(statement("lease_create", self._table))

    @contextlib.contextmanager
    def _in_time(self, seconds: float) -> Iterator[None]:
        """Hang up on a database that does not answer: the driver itself would wait for ever."""
        timer = threading.Timer(seconds, hang_up, [self._connection])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def _session(dsn: str, session: str, seconds: float) -> str:
    milliseconds = max(100, int(seconds * 1000))
    given = conninfo.conninfo_to_dict(dsn)
    options = (
        f"{given.get('options') or ''} -c statement_timeout={milliseconds} -c TimeZone=UTC -c DateStyle=ISO "
        "-c default_transaction_isolation=read\\ committed -c default_transaction_read_only=off "
        # A lost lease is taken anew: it need not be on the disk.
        "-c synchronous_commit=off -c client_encoding=UTF8"
    ).strip()
    network = {"connect_timeout": "2", "keepalives_idle": "2", "tcp_user_timeout": str(milliseconds)}
    network = {key: value for key, value in network.items() if key not in given}
    return conninfo.make_conninfo(dsn, application_name=session, options=options, **network)
