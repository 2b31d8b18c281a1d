"""What a relay shows of itself: its shards, what waits, how fast it goes, and what an operator should know."""

import collections
import threading
import time
from typing import Any

import psycopg

from thresher.relay.backlog import Backlog, read_backlog
from thresher.relay.database import connect
from thresher.relay.names import sessions
from thresher.relay.problem import RelayProblem
from thresher.relay.relay import Relay

# The rate is over so many seconds.
_RATE_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5
# Who asks more often gets the same answer.
_FRESH_SECONDS = 0.5


class Status:
    """Pictures one relay. Safe from any thread; `close` ends its sampling."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._backlog: Backlog | None = None
        self._trouble: str | None = None
        self._looked = 0.0
        self._samples: collections.deque[tuple[float, list[float]]] = collections.deque()
        self._closed = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="status-samples", daemon=True)
        self._sampler.start()

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._sampler.join(5.0)
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def picture(self) -> dict[str, Any]:
        """Return how things stand."""
        settings, snapshot = self._relay.settings, self._relay.snapshot()
        with self._lock:
            self._look()
            backlog, trouble = self._backlog, self._trouble
            rates = self._rates()
        shards: list[dict[str, Any]] = []
        for shard in snapshot.shards if snapshot else ():
            place = shard.shard
            shards.append(
                {
                    "shard": place,
                    "state": str(shard.state),
                    "seconds": shard.seconds,
                    "attempt": shard.attempt,
                    "restarts": shard.restarts,
                    "host": shard.host,
                    "pid": shard.pid,
                    "relayed": shard.counts.get("relayed", 0),
                    "filtered": shard.counts.get("filtered", 0),
                    "dead": shard.counts.get("dead", 0),
                    "recovered": shard.counts.get("recovered", 0),
                    "transactions": shard.counts.get("transactions", 0),
                    "rows_per_s": round(rates[place], 1) if place < len(rates) else 0.0,
                    "pending": backlog.by_shard[place] if backlog else None,
                    "last_error": shard.last_error,
                }
            )
        return {
            "name": settings.name,
            "outbox": settings.outbox.quoted(),
            "term": self._relay.term,
            "state": str(snapshot.state) if snapshot else "taking over",
            "pending": backlog.pending if backlog else None,
            "pending_exact": backlog.exact if backlog else None,
            "oldest_pending_seconds": round(backlog.oldest_seconds, 3)
            if backlog and backlog.oldest_seconds is not None
            else None,
            "dead_rows": backlog.dead if backlog else None,
            "blocking_rows": backlog.blocking if backlog else None,
            "relayed": sum(int(shard["relayed"]) for shard in shards),
            "rows_per_s": round(sum(rates), 1),
            "alarms": dict(self._relay.alarms),
            "waiting_for": self._relay.waiting_for,
            "database_trouble": trouble,
            "shards": shards,
        }

    def _sample(self) -> None:
        while not self._closed.wait(_SAMPLE_SECONDS):
            snapshot = self._relay.snapshot()
            if snapshot is not None:
                now = time.monotonic()
                with self._lock:
                    self._samples.append((now, [shard.counts.get("relayed", 0) for shard in snapshot.shards]))
                    while self._samples and self._samples[0][0] < now - _RATE_SECONDS:
                        self._samples.popleft()

    def _rates(self) -> list[float]:
        if len(self._samples) < 2:
            return []
        (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return [(after - before) / (ended - began) for before, after in zip(first, last, strict=True)]

    def _look(self) -> None:
        if time.monotonic() - self._looked < _FRESH_SECONDS:
            return
        settings = self._relay.settings
        try:
            if self._connection is None:
                self._connection = connect(settings.dsn, f"{sessions(settings.name, self._relay.term or '')}/s")
            self._backlog = read_backlog(self._connection, settings.outbox, settings.shape, settings.shards)
            self._trouble = None
        except RelayProblem as error:
            self._backlog, self._trouble = None, str(error)
            if self._connection is not None:
                self._connection.close()
            self._connection = None
        self._looked = time.monotonic()
