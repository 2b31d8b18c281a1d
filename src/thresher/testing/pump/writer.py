"""One writer of a load: runs one transaction after another on one connection.

1. Each transaction is recorded in the history, inserted, and committed or rolled back. Then its outcome is recorded.
2. If the connection is lost before COMMIT is sent, the outcome is rolled back. If it is lost while the writer waits for
   the answer to COMMIT, the outcome is unknown.
3. After a lost connection, the writer connects again, for `patience_seconds` at most. Any other error ends it.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from thresher.outbox import Outbox
from thresher.testing.history import HistoryWriter, Outcome
from thresher.testing.pump.plan import Load, Plan, loads

_RETRY_SECONDS = 0.1
_LOST = (psycopg.OperationalError, psycopg.InterfaceError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Rows by outcome, transactions, and the times of the first begin and the last end (monotonic, in ns)."""

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    transactions: int = 0
    first: int | None = None
    last: int | None = None

    @property
    def rows(self) -> int:
        """The rows of all outcomes."""
        return self.committed + self.rolled_back + self.unknown

    @property
    def seconds(self) -> float:
        """How long the writing took."""
        return 0.0 if self.first is None or self.last is None else (self.last - self.first) / 1e9

    def plus(self, outcome: Outcome, rows: int, begin: int, end: int) -> "Tally":
        """Return the tally with one more transaction."""
        return replace(
            self,
            **{outcome.value: getattr(self, outcome.value) + rows},
            transactions=self.transactions + 1,
            first=begin if self.first is None else self.first,
            last=end,
        )

    def merge(self, other: "Tally") -> "Tally":
        """Return the sum of both."""
        firsts = [first for first in (self.first, other.first) if first is not None]
        lasts = [last for last in (self.last, other.last) if last is not None]
        return Tally(
            committed=self.committed + other.committed,
            rolled_back=self.rolled_back + other.rolled_back,
            unknown=self.unknown + other.unknown,
            transactions=self.transactions + other.transactions,
            first=min(firsts, default=None),
            last=max(lasts, default=None),
        )


class Writer:
    """A writer with its connection. `stop` is called before each transaction and while it waits."""

    def __init__(self, plan: Plan, index: int, stop: Callable[[], bool]) -> None:
        self._plan = plan
        self._index = index
        self._stop = stop
        self._outbox = Outbox(plan.table, schema=plan.schema, shape=plan.shape, via=plan.via, slot=plan.slot)
        self._history = HistoryWriter(plan.history, plan.run) if plan.history else None
        self._connection = self._connect()

    def run(self, report: Callable[[Tally], None]) -> Tally:
        """Write everything, or until `stop` returns true. Report the tally after each transaction; return the last."""
        tally = Tally()
        start = time.monotonic()
        for number, load in enumerate(loads(self._plan, self._index)):
            if self._wait(start, tally.rows):
                break
            begin = time.monotonic_ns()
            if self._history:
                self._history.begin(self._index, number, begin, load.rows, load.contents())
            outcome = self._transact(load)
            end = time.monotonic_ns()
            if self._history:
                self._history.end(self._index, number, end, outcome)
            tally = tally.plus(outcome, len(load.rows), begin, end)
            report(tally)
            if self._connection.closed:
                try:
                    self._connection = self._connect()
                except psycopg.OperationalError:
                    if self._stop():
                        break
                    raise
        return tally

    def close(self) -> None:
        """Close the connection and the history."""
        self._connection.close()
        if self._history:
            self._history.close()

    def _transact(self, load: Load) -> Outcome:
        connection = self._connection
        try:
            self._outbox.stash_many(connection, load.messages)
            if load.roll_back:
                connection.rollback()
                return Outcome.ROLLED_BACK
        except _LOST:
            if not _broken(connection):
                raise
            return Outcome.ROLLED_BACK
        try:
            connection.commit()
        except _LOST:
            if not _broken(connection):
                raise
            return Outcome.UNKNOWN
        return Outcome.COMMITTED

    def _connect(self) -> psycopg.Connection[Any]:
        deadline = time.monotonic() + self._plan.patience_seconds
        while True:
            try:
                return psycopg.connect(self._plan.dsn, application_name="thresher pump")
            except psycopg.OperationalError as error:
                # Retry only while the server is down: a wrong password does not become right.
                if _refused_for_good(error) or time.monotonic() > deadline or self._stop():
                    raise
                time.sleep(_RETRY_SECONDS)

    def _wait(self, start: float, rows: int) -> bool:
        """Wait as the requested rate demands; True if `stop` returned true meanwhile."""
        due = start + rows * self._plan.interval_milliseconds / 1000
        if self._plan.rate is not None:
            due = max(due, start + rows * self._plan.writers / self._plan.rate)
        while not self._stop():
            left = due - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, 0.05))
        return True


def _broken(connection: psycopg.Connection[Any]) -> bool:
    lost = connection.closed or connection.broken
    if lost:
        with contextlib.suppress(psycopg.Error):
            connection.close()
    return lost


def _refused_for_good(error: psycopg.OperationalError) -> bool:
    text = str(error).lower()
    return any(
        sign in text for sign in ("authentication failed", "does not exist", "no password", "no pg_hba.conf entry")
    )
