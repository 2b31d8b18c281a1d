"""The database faults of a random soak."""

import contextlib
import time
from collections.abc import Callable, Collection
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from tests.faults.mix.agenda import Agenda
from tests.faults.mix.signals import stopped
from thresher.devstack.postgres import Postgres

# The time for an outbox without writers to become empty, the interval of looks, and the number of tries.
_EMPTY_SECONDS, _LOOK_SECONDS, _TRIES = 2.0, 0.05, 3

_WAITING: LiteralString = """
    SELECT kafka_topic, count(*), count(DISTINCT kafka_key), min(id), max(id), min(create_time)
    FROM {} GROUP BY kafka_topic ORDER BY 2 DESC LIMIT 20"""
_SESSIONS: LiteralString = """
    SELECT pid, application_name, state, now() - xact_start, now() - query_start, wait_event_type, wait_event,
           pg_blocking_pids(pid), backend_xmin, left(query, 300)
    FROM pg_stat_activity WHERE backend_type = 'client backend'"""


class Database:
    """The server, and an outbox in it; `writers` returns the processes that write to it."""

    def __init__(
        self, server: Postgres, dsn: str, *, table: str, writers: Callable[[], Collection[int]], agenda: Agenda
    ) -> None:
        self._server, self._dsn, self._table = server, dsn, sql.Identifier(table)
        self._writers, self._agenda = writers, agenda

    def connect(self) -> psycopg.Connection[Any]:
        # The table lock may be one of our own faults: this thread would release it, so it must not wait for long.
        return psycopg.connect(self._dsn, connect_timeout=2, options="-c lock_timeout=1s")

    def counted(self, last: int) -> tuple[int, int, int] | None:
        """Return the number of rows, the number of rows up to an id, and the highest id; None without an answer."""
        try:
            with self.connect() as connection:
                query = "SELECT count(*), count(*) FILTER (WHERE id <= %s), coalesce(max(id), 0) FROM {}"
                return connection.execute(self._on(query), [last]).fetchone()
        except psycopg.Error:
            return None

    def circumstances(self) -> str:
        """Return the pending rows by topic, and the sessions with their wait events."""
        try:
            with self.connect() as connection:
                rows = connection.execute(self._on(_WAITING)).fetchall()
                sessions = connection.execute(_SESSIONS).fetchall()
        except psycopg.Error as error:
            return f"the database does not answer: {error}"
        return "\n".join(str(each) for each in [*rows, *sessions])

    def _on(self, query: LiteralString) -> sql.Composed:
        return sql.SQL(query).format(self._table)

    def start(self) -> None:
        if not self._server.server.running:
            self._server.start()

    # Faults

    def end_sessions(self, rows: int) -> None:
        with psycopg.connect(self._server.dsn(), autocommit=True, connect_timeout=2) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity"
                " WHERE application_name LIKE 'thresher/%%' ORDER BY random() LIMIT %s) AS chosen",
                [rows],
            )

    def postgres_fast(self, seconds: float) -> bool:
        return self._end(self._server.server.stop, seconds)

    def postgres_immediate(self, seconds: float) -> bool:
        return self._end(self._server.server.end, seconds)

    def postgres_kill(self, seconds: float) -> bool:
        return self._end(self._server.server.kill, seconds)

    def table_locked(self, seconds: float) -> None:
        connection = self.connect()
        try:
            connection.execute(self._on("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"))
        except psycopg.Error:
            connection.close()
            raise
        self._agenda.later(seconds, "unlock", connection.close)

    def ids_restart(self) -> bool:
        """Restart the ids, when nothing is pending."""
        for _ in range(_TRIES):
            # A writer that was stopped within a transaction holds a lock: the lock time-out ends the wait.
            with stopped(self._writers()), contextlib.suppress(psycopg.errors.LockNotAvailable):
                if self._becomes_empty() and self._truncate():
                    return True
        return False

    def _becomes_empty(self) -> bool:
        deadline = time.monotonic() + _EMPTY_SECONDS
        with self.connect() as connection:
            connection.autocommit = True
            while connection.execute(self._on("SELECT FROM {} LIMIT 1")).fetchone() is not None:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_LOOK_SECONDS)
        return True

    def _truncate(self) -> bool:
        """Truncate the outbox if it is empty; the lock keeps writers out."""
        with self.connect() as connection:
            connection.execute(self._on("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE"))
            if connection.execute(self._on("SELECT FROM {} LIMIT 1")).fetchone() is not None:
                return False
            connection.execute(self._on("TRUNCATE {} RESTART IDENTITY"))
        return True

    def _end(self, end: Callable[[], object], seconds: float) -> bool:
        if not self._server.server.running:
            return False
        end()
        self._agenda.later(seconds, "postgres start", self.start)
        return True
