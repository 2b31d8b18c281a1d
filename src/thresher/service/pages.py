"""The pages of a process: /status for people and tools, /metrics for Prometheus, /healthz and /readyz for probes.

The probes ask no server. The workload's part of /status and /metrics may ask one, with a time-out of seconds.
"""

import collections
import threading
import time
from typing import Any, Protocol

from thresher.observe.prometheus import scrape
from thresher.observe.server import Answer, Page
from thresher.service.health import ProcessHealth, Role, liveness, readiness
from thresher.service.metrics import ServiceMetrics, shard_health
from thresher.service.process_counts import ProcessCounts
from thresher.service.report import Observed, ServiceSnapshot
from thresher.service.workload import Workload

# The time over which rates are computed.
_RATE_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5


class Shown(Observed, Protocol):
    """A service or a leadership, as the pages see it."""

    @property
    def workload(self) -> Workload:
        """The workload that runs while the process leads."""


class StatusPages:
    """The pages of one process. Safe in any thread; `close` ends its threads."""

    def __init__(self, shown: Shown) -> None:
        self._shown, self._wording = shown, shown.workload.wording
        self._report = shown.workload.report(shown)
        self._metrics = ServiceMetrics(self._wording, self._report.error_kinds, tuple(shown.workload.probes))
        self._rates = Rates(shown.process_counts, self._wording.done)

    @property
    def pages(self) -> dict[str, Page]:
        """The pages by path, for a server."""
        return {
            "/status": self.picture,
            "/metrics": self.metrics,
            "/healthz": lambda: liveness(self.process_health()).answer(),
            "/readyz": lambda: readiness(self.process_health()).answer(),
        }

    def close(self) -> None:
        """End the pages' threads."""
        self._rates.close()
        self._report.close()

    def process_health(self) -> ProcessHealth:
        """Return the facts for the probes. Asks no server."""
        shown, engine = self._shown, self._shown.snapshot()
        role = shown.role
        return ProcessHealth(
            role=role,
            wording=self._wording,
            waiting_for=shown.waiting_for,
            trouble=shown.trouble,
            servers=shown.reach.health(standby=role is Role.STANDBY),
            shards=tuple(shard_health(each, self._wording) for each in (engine.shards if engine else ())),
            alarms=tuple(shown.alarms),
            silent_seconds=shown.silent_seconds(),
        )

    def metrics(self) -> Answer:
        """Return /metrics, for Prometheus."""
        answer = self._report.ask()
        snapshot = self._snapshot()
        families = (*self._metrics.families, *self._report.families)
        return scrape(families, [*self._metrics.readings(snapshot), *self._report.readings(snapshot, answer)])

    def picture(self) -> dict[str, Any]:
        """Return /status, for people and tools."""
        answer = self._report.ask()
        shown, engine, done = self._shown, self._shown.snapshot(), self._wording.done
        snapshot = self._snapshot()
        part = self._report.status(snapshot, answer)
        rates = self._rates.per_second()
        return {
            "name": snapshot.name,
            "role": str(snapshot.role),
            # Only a service that competes knows of others.
            "leader": getattr(shown, "leader", None) if snapshot.role is Role.STANDBY else None,
            "term": shown.term,
            "state": str(engine.state) if engine else str(snapshot.role),
            done: sum(int(counted.get(done, 0)) for counted in snapshot.counts.values()),
            "rows_per_s": round(sum(rates.values()), 1),
            "ready": snapshot.ready,
            "reason": snapshot.reason,
            "alarms": dict(snapshot.alarms),
            "waiting_for": shown.waiting_for,
            "servers": {
                name: {"up": server.up, "reached_seconds_ago": round(server.seconds, 1), "trouble": server.text or None}
                for name, server in snapshot.servers.items()
            },
            **part.page,
            "shards": [
                {
                    "shard": shard.shard,
                    "state": str(shard.state),
                    "seconds": shard.seconds,
                    "attempt": shard.attempt,
                    "restarts": shard.restarts,
                    "host": shard.host,
                    "pid": shard.pid,
                    done: snapshot.counts.get(shard.shard, {}).get(done, 0),
                    "rows_per_s": round(rates.get(shard.shard, 0.0), 1),
                    **part.shards.get(shard.shard, {}),
                    "steps": {name: round(seconds, 1) for name, seconds in shard.steps.items()},
                    "last_error": shard.last_error,
                }
                for shard in snapshot.shards
            ],
        }

    def _snapshot(self) -> ServiceSnapshot:
        shown, engine = self._shown, self._shown.snapshot()
        process_health = self.process_health()
        verdict = readiness(process_health)
        return ServiceSnapshot(
            name=shown.workload.name,
            role=process_health.role,
            ready=verdict.good,
            reason=verdict.reason,
            servers=process_health.servers,
            shards=engine.shards if engine else (),
            counts=shown.process_counts.shards(),
            driver=shown.process_counts.driver(),
            alarms=dict(shown.alarms),
        )


class Rates:
    """The recent growth of a count, per second and shard. Safe in any thread."""

    def __init__(self, process_counts: ProcessCounts, figure: str) -> None:
        self._process_counts, self._figure = process_counts, figure
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._samples: collections.deque[tuple[float, dict[int, float]]] = collections.deque()
        self._thread = threading.Thread(target=self._sample, name="status-samples", daemon=True)
        self._thread.start()

    def per_second(self) -> dict[int, float]:
        """Return the rate of each shard; nothing before there are two samples."""
        with self._lock:
            if len(self._samples) < 2:
                return {}
            (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return {shard: (after - first.get(shard, 0)) / (ended - began) for shard, after in last.items()}

    def close(self) -> None:
        """End the sampling thread."""
        self._closed.set()
        self._thread.join(5.0)

    def _sample(self) -> None:
        while not self._closed.wait(_SAMPLE_SECONDS):
            counts = self._process_counts.shards()
            now = time.monotonic()
            with self._lock:
                self._samples.append((now, {shard: each.get(self._figure, 0) for shard, each in counts.items()}))
                while self._samples and self._samples[0][0] < now - _RATE_SECONDS:
                    self._samples.popleft()
