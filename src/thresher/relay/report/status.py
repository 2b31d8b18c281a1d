"""A relay's part of the /status and /metrics pages of its process: the backlog of its outbox, and its own figures.

A page waits at most 3 s for the database. On a standby the database is not asked: a standby keeps no connection.
"""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict

from thresher.core.errors import PipelineProblem
from thresher.db.problem import DatabaseLost
from thresher.db.topic_locks import LockingSession
from thresher.delivery.names import sessions
from thresher.observe.metric import Reading
from thresher.relay.leader.background_work import BackgroundWork
from thresher.relay.leader.shard_marks import ShardMarks
from thresher.relay.report.backlog import Backlog, read_backlog
from thresher.relay.report.metrics import ERROR_KINDS, OWN_FAMILIES, readings
from thresher.relay.settings import Settings
from thresher.relay.store import driver_store_of
from thresher.service.health import Role
from thresher.service.report import Observed, ServiceSnapshot, StatusPart

logger = logging.getLogger(__name__)

# How long an answer of the database is reused.
_FRESH_SECONDS = 0.5
# How long a request waits for the database.
_PATIENCE_SECONDS = 3.0
# How long a process may keep its session after it became a standby.
_STANDBY_SECONDS = 1.0
# Counters that are shown for each shard.
_SHARD_FIGURES = ("filtered", "dead", "recovered", "transactions")

# The backlog, or the reason why it is not known. Both are None on a standby, which does not ask.
Answer = tuple[Backlog | None, str | None]


class RelayReport:
    """One relay's part of the pages. Safe from any thread; `close` ends its thread.

    A page waits for the database for `patience_seconds` at most.
    """

    families = OWN_FAMILIES
    error_kinds = ERROR_KINDS

    def __init__(
        self,
        settings: Settings,
        observed: Observed,
        marks: ShardMarks,
        background_work: BackgroundWork | None = None,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        self._settings, self._marks, self._background_work = settings, marks, background_work
        self._reader = BacklogReader(settings, observed, patience_seconds)

    def ask(self) -> Answer:
        """Return the backlog, or the reason why it is not known."""
        return self._reader.look()

    def status(self, snapshot: ServiceSnapshot, answer: Answer) -> StatusPart:
        """Return the relay's part of /status: the outbox, its backlog, and counters by shard."""
        backlog, trouble = answer
        database = snapshot.servers.get("database")
        if trouble is None and database is not None and not database.up:
            trouble = database.text
        oldest = backlog.oldest_seconds if backlog else None
        return StatusPart(
            page={
                "outbox": self._settings.outbox.quoted(),
                "pending": backlog.pending if backlog else None,
                "pending_exact": backlog.exact if backlog else None,
                "oldest_pending_seconds": None if oldest is None else round(oldest, 3),
                "dead_rows": backlog.dead if backlog else None,
                "blocking_rows": backlog.blocking if backlog else None,
                "database_trouble": trouble,
                **({"topics": [asdict(each) for each in backlog.topics]} if backlog and backlog.topics else {}),
            },
            shards={
                each.shard: {
                    **{figure: snapshot.counts.get(each.shard, {}).get(figure, 0) for figure in _SHARD_FIGURES},
                    "pending": backlog.by_shard[each.shard] if backlog else None,
                    # The mark of the shard's rows.
                    "leader_id": self._marks.leader_ids.get(each.shard),
                }
                for each in snapshot.shards
            },
        )

    def readings(self, snapshot: ServiceSnapshot, answer: Answer) -> Iterator[Reading]:
        """Yield a relay's own metrics."""
        backlog, _ = answer
        return readings(snapshot, backlog, self._background_work)

    def close(self) -> None:
        """End the thread that reads the backlog."""
        self._reader.close()


class BacklogReader:
    """Reads the backlog in a thread of its own, because the database may take for ever to answer."""

    def __init__(self, settings: Settings, observed: Observed, patience_seconds: float) -> None:
        self._settings, self._observed, self._patience_seconds = settings, observed, patience_seconds
        self._state = threading.Condition()
        self._wanted = self._closed = False
        self._looks = 0
        self._looked = float("-inf")
        self._found: Answer = (None, None)
        self._session: LockingSession | None = None
        self._term = ""
        self._thread = threading.Thread(target=self._run, name="status-backlog", daemon=True)
        self._thread.start()

    def look(self) -> Answer:
        """Return the backlog, or the reason why it is not known. Both are None on a standby."""
        with self._state:
            if time.monotonic() - self._looked >= _FRESH_SECONDS:
                before = self._looks
                self._wanted = True
                self._state.notify_all()
                self._state.wait_for(lambda: self._looks > before or self._closed, self._patience_seconds)
                if self._looks == before:
                    return None, f"the database has not answered for {self._patience_seconds:g} s"
            return self._found

    def close(self) -> None:
        """End the thread. If it waits for the database, it ends with the process."""
        with self._state:
            self._closed = True
            self._state.notify_all()
        self._thread.join(1.0)

    def _run(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._wanted or self._closed, _STANDBY_SECONDS)
                if self._closed:
                    break
                wanted, self._wanted = self._wanted, False
            if self._observed.role is Role.STANDBY:
                # Closed even without a request: the session was opened while this process was leader.
                self._let_go()
            if not wanted:
                continue
            found = self._ask()
            with self._state:
                self._found, self._looked = found, time.monotonic()
                self._looks += 1
                self._state.notify_all()
        self._let_go()

    def _ask(self) -> Answer:
        if self._observed.role is Role.STANDBY:
            return None, None
        try:
            return self._read(), None
        except PipelineProblem as error:
            self._let_go()
            return None, str(error)
        except Exception as error:
            # The request must be answered, and the thread must go on for the next one.
            logger.exception("the backlog could not be read")
            self._let_go()
            return None, f"{type(error).__name__}: {error}"

    def _read(self) -> Backlog:
        settings, term = self._settings, self._observed.term or ""
        if self._session is not None and self._term == term:
            try:
                return read_backlog(self._session, settings)
            except DatabaseLost:
                # Perhaps only this session was lost, which may be minutes old: try a new one.
                pass
        # A take-over ends sessions with an older term in their name, our own included.
        self._let_go()
        self._session, self._term = driver_store_of(settings).session(f"{sessions(settings.name, term)}/s"), term
        return read_backlog(self._session, settings)

    def _let_go(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
