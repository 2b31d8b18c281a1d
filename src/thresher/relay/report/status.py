"""What a relay shows of itself: its shards, what waits, how fast it goes, and what an operator should know.

Four pages: `/status` for people and tools of ours, `/metrics` for Prometheus, `/healthz` and `/readyz` for probes. The
probes ask no server, and no page waits long for a database that does not answer. For a standby the database is not
asked at all: it holds no connection.
"""

import collections
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

from thresher.core.errors import PipelineProblem
from thresher.db.outbox_store import StoreSession
from thresher.db.problem import DatabaseLost
from thresher.observe.prometheus import scrape
from thresher.observe.server import Answer, Page
from thresher.relay.names import sessions
from thresher.relay.report.backlog import Backlog, read_backlog
from thresher.relay.report.metrics import FAMILIES, Moment, readings, relaying
from thresher.relay.settings import Settings
from thresher.relay.store import store_of
from thresher.service.health import Role, ShardHealth, Vitals, liveness, readiness
from thresher.service.ledger import Ledger
from thresher.spark.driver.snapshot import Snapshot

logger = logging.getLogger(__name__)

# The rate is over so many seconds.
_RATE_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5
# Who asks more often gets the same answer.
_FRESH_SECONDS = 0.5
# Who asks does not wait longer for the database.
_PATIENCE_SECONDS = 3.0
# How long a process may keep its session after it became a standby.
_STANDBY_SECONDS = 1.0


class Observed(Protocol):
    """What is shown: one relay, or a process that leads one now and then."""

    @property
    def settings(self) -> Settings:
        """What it was told."""

    @property
    def role(self) -> Role:
        """What it is at the moment."""

    @property
    def term(self) -> str | None:
        """Under which term it leads, or led last."""

    @property
    def alarms(self) -> Mapping[str, str]:
        """Topics whose rows wait, and why."""

    @property
    def waiting_for(self) -> str | None:
        """What keeps it from taking over."""

    @property
    def trouble(self) -> tuple[str, str] | None:
        """The kind and the text of what it meets with a server."""

    @property
    def ledger(self) -> Ledger:
        """What it has counted."""

    def snapshot(self) -> Snapshot | None:
        """How its shards stand, if it has any."""

    def silent_seconds(self) -> dict[str, float]:
        """For how long each of its threads has owed an answer."""


class Status:
    """Pictures one relay. Safe from any thread; `close` ends its threads."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._closed = threading.Event()
        self._outlook = _Outlook(observed)
        self._lock = threading.Lock()
        self._samples: collections.deque[tuple[float, dict[int, float]]] = collections.deque()
        self._sampler = threading.Thread(target=self._sample, name="status-samples", daemon=True)
        self._sampler.start()

    @property
    def pages(self) -> dict[str, Page]:
        """What a server shows, by path."""
        return {
            "/status": self.picture,
            "/metrics": self.metrics,
            "/healthz": lambda: liveness(self.vitals()).answer(),
            "/readyz": lambda: readiness(self.vitals()).answer(),
        }

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._sampler.join(5.0)
        self._outlook.close()

    def vitals(self) -> Vitals:
        """Return what probes go by; asks no server."""
        observed, snapshot = self._observed, self._observed.snapshot()
        return Vitals(
            role=observed.role,
            waiting_for=observed.waiting_for,
            trouble=observed.trouble,
            shards=tuple(
                ShardHealth(
                    shard=each.shard, state=str(each.state), relaying=relaying(each), last_error=each.last_error
                )
                for each in (snapshot.shards if snapshot else ())
            ),
            alarms=tuple(dict(observed.alarms)),
            silent_seconds=observed.silent_seconds(),
        )

    def metrics(self) -> Answer:
        """Return how things stand for Prometheus."""
        observed, snapshot = self._observed, self._observed.snapshot()
        backlog, trouble = self._outlook.look()
        moment = Moment(
            relay=observed.settings.name,
            role=observed.role,
            ready=readiness(self.vitals()).good,
            shards=snapshot.shards if snapshot else (),
            counts=observed.ledger.shards(),
            driver=observed.ledger.driver(),
            asked=backlog is not None or trouble is not None,
            backlog=backlog,
            held_topics=len(observed.alarms),
        )
        return scrape(FAMILIES, readings(moment))

    def picture(self) -> dict[str, Any]:
        """Return how things stand."""
        observed, snapshot = self._observed, self._observed.snapshot()
        settings = observed.settings
        backlog, trouble = self._outlook.look()
        counts = observed.ledger.shards()
        rates = self._rates()
        shards: list[dict[str, Any]] = []
        for shard in snapshot.shards if snapshot else ():
            place = shard.shard
            counted = counts.get(place, {})
            shards.append(
                {
                    "shard": place,
                    "state": str(shard.state),
                    "seconds": shard.seconds,
                    "attempt": shard.attempt,
                    "restarts": shard.restarts,
                    "host": shard.host,
                    "pid": shard.pid,
                    "relayed": counted.get("relayed", 0),
                    "filtered": counted.get("filtered", 0),
                    "dead": counted.get("dead", 0),
                    "recovered": counted.get("recovered", 0),
                    "transactions": counted.get("transactions", 0),
                    "rows_per_s": round(rates.get(place, 0.0), 1),
                    "pending": backlog.by_shard[place] if backlog else None,
                    "last_error": shard.last_error,
                }
            )
        return {
            "name": settings.name,
            "outbox": settings.outbox.quoted(),
            "role": str(observed.role),
            "term": observed.term,
            "state": str(snapshot.state) if snapshot else str(observed.role),
            "pending": backlog.pending if backlog else None,
            "pending_exact": backlog.exact if backlog else None,
            "oldest_pending_seconds": round(backlog.oldest_seconds, 3)
            if backlog and backlog.oldest_seconds is not None
            else None,
            "dead_rows": backlog.dead if backlog else None,
            "blocking_rows": backlog.blocking if backlog else None,
            "relayed": sum(int(counted.get("relayed", 0)) for counted in counts.values()),
            "rows_per_s": round(sum(rates.values()), 1),
            "alarms": dict(observed.alarms),
            "waiting_for": observed.waiting_for,
            "database_trouble": trouble,
            "shards": shards,
        }

    def _sample(self) -> None:
        while not self._closed.wait(_SAMPLE_SECONDS):
            counts = self._observed.ledger.shards()
            now = time.monotonic()
            with self._lock:
                self._samples.append((now, {shard: each.get("relayed", 0) for shard, each in counts.items()}))
                while self._samples and self._samples[0][0] < now - _RATE_SECONDS:
                    self._samples.popleft()

    def _rates(self) -> dict[int, float]:
        with self._lock:
            if len(self._samples) < 2:
                return {}
            (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return {shard: (after - first.get(shard, 0)) / (ended - began) for shard, after in last.items()}


class _Outlook:
    """Looks at what waits in the outbox, in a thread of its own: a database may take for ever to answer."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._state = threading.Condition()
        self._wanted = self._closed = False
        self._looks = 0
        self._looked = float("-inf")
        self._found: tuple[Backlog | None, str | None] = (None, None)
        self._session: StoreSession | None = None
        self._term = ""
        self._thread = threading.Thread(target=self._run, name="status-backlog", daemon=True)
        self._thread.start()

    def look(self) -> tuple[Backlog | None, str | None]:
        """Return what waits, or why that is not known; neither for a standby, which does not ask."""
        with self._state:
            if time.monotonic() - self._looked >= _FRESH_SECONDS:
                before = self._looks
                self._wanted = True
                self._state.notify_all()
                self._state.wait_for(lambda: self._looks > before or self._closed, _PATIENCE_SECONDS)
                if self._looks == before:
                    return None, f"the database has not answered for {_PATIENCE_SECONDS:g} s"
            return self._found

    def close(self) -> None:
        """End, unless the database keeps the thread: then it ends with the process."""
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
                # Whether anybody asks or not: it became one with a connection open.
                self._let_go()
            if not wanted:
                continue
            found = self._ask()
            with self._state:
                self._found, self._looked = found, time.monotonic()
                self._looks += 1
                self._state.notify_all()
        self._let_go()

    def _ask(self) -> tuple[Backlog | None, str | None]:
        if self._observed.role is Role.STANDBY:
            return None, None
        try:
            return self._read(), None
        except PipelineProblem as error:
            self._let_go()
            return None, str(error)
        except Exception as error:
            # Whoever asks has to know, and the thread goes on for the next.
            logger.exception("the backlog could not be read")
            self._let_go()
            return None, f"{type(error).__name__}: {error}"

    def _read(self) -> Backlog:
        settings, term = self._observed.settings, self._observed.term or ""
        if self._session is not None and self._term == term:
            try:
                return read_backlog(self._session, settings.shards)
            except DatabaseLost:
                # Perhaps only this session was: it may be minutes old.
                pass
        # A session with an older term in its name is ended by whoever takes over, ourselves included.
        self._let_go()
        self._session, self._term = store_of(settings).session(f"{sessions(settings.name, term)}/s"), term
        return read_backlog(self._session, settings.shards)

    def _let_go(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None
