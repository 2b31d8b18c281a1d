"""The pages of a process: /status for people and tools, /metrics for Prometheus, /healthz and /readyz for probes.

The probes ask no server. The workload's part of the other two may ask one, and does not wait for it for long.
"""

import collections
import threading
import time
from typing import Any, Protocol

from thresher.observe.prometheus import scrape
from thresher.observe.server import Answer, Page
from thresher.service.health import Role, Vitals, liveness, readiness
from thresher.service.ledger import Ledger
from thresher.service.metrics import ServiceMetrics, shard_health
from thresher.service.report import Moment, Observed
from thresher.service.workload import Workload

# Rates are over so many seconds.
_RATE_SECONDS = 10.0
_SAMPLE_SECONDS = 0.5


class Shown(Observed, Protocol):
    """A service, or one leadership of it."""

    @property
    def workload(self) -> Workload:
        """The work that it does while it leads."""


class StatusPages:
    """Shows one process. Safe from any thread; `close` ends its threads."""

    def __init__(self, shown: Shown) -> None:
        self._shown, self._wording = shown, shown.workload.wording
        self._report = shown.workload.report(shown)
        self._metrics = ServiceMetrics(self._wording, self._report.error_kinds, tuple(shown.workload.probes))
        self._rates = Rates(shown.ledger, self._wording.done)

    @property
    def pages(self) -> dict[str, Page]:
        """The pages by path, for a server."""
        return {
            "/status": self.picture,
            "/metrics": self.metrics,
            "/healthz": lambda: liveness(self.vitals()).answer(),
            "/readyz": lambda: readiness(self.vitals()).answer(),
        }

    def close(self) -> None:
        """End."""
        self._rates.close()
        self._report.close()

    def vitals(self) -> Vitals:
        """Return what probes go by; asks no server."""
        shown, snapshot = self._shown, self._shown.snapshot()
        role = shown.role
        return Vitals(
            role=role,
            wording=self._wording,
            waiting_for=shown.waiting_for,
            trouble=shown.trouble,
            servers=shown.reach.health(standby=role is Role.STANDBY),
            shards=tuple(shard_health(each, self._wording) for each in (snapshot.shards if snapshot else ())),
            alarms=tuple(shown.alarms),
            silent_seconds=shown.silent_seconds(),
        )

    def metrics(self) -> Answer:
        """Return how things stand for Prometheus."""
        answer = self._report.ask()
        moment = self._moment()
        families = (*self._metrics.families, *self._report.families)
        return scrape(families, [*self._metrics.readings(moment), *self._report.readings(moment, answer)])

    def picture(self) -> dict[str, Any]:
        """Return how things stand."""
        answer = self._report.ask()
        shown, snapshot, done = self._shown, self._shown.snapshot(), self._wording.done
        moment = self._moment()
        part = self._report.status(moment, answer)
        rates = self._rates.per_second()
        return {
            "name": moment.name,
            "role": str(moment.role),
            # Only a service that competes knows of others.
            "leader": getattr(shown, "leader", None) if moment.role is Role.STANDBY else None,
            "term": shown.term,
            "state": str(snapshot.state) if snapshot else str(moment.role),
            done: sum(int(counted.get(done, 0)) for counted in moment.counts.values()),
            "rows_per_s": round(sum(rates.values()), 1),
            "ready": moment.ready,
            "reason": moment.reason,
            "alarms": dict(moment.alarms),
            "waiting_for": shown.waiting_for,
            "servers": {
                name: {"up": server.up, "reached_seconds_ago": round(server.seconds, 1), "trouble": server.text or None}
                for name, server in moment.servers.items()
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
                    done: moment.counts.get(shard.shard, {}).get(done, 0),
                    "rows_per_s": round(rates.get(shard.shard, 0.0), 1),
                    **part.shards.get(shard.shard, {}),
                    "steps": {name: round(seconds, 1) for name, seconds in shard.steps.items()},
                    "last_error": shard.last_error,
                }
                for shard in moment.shards
            ],
        }

    def _moment(self) -> Moment:
        shown, snapshot = self._shown, self._shown.snapshot()
        vitals = self.vitals()
        verdict = readiness(vitals)
        return Moment(
            name=shown.workload.name,
            role=vitals.role,
            ready=verdict.good,
            reason=verdict.reason,
            servers=vitals.servers,
            shards=snapshot.shards if snapshot else (),
            counts=shown.ledger.shards(),
            driver=shown.ledger.driver(),
            alarms=dict(shown.alarms),
        )


class Rates:
    """How fast a figure of each shard has grown lately. Safe from any thread."""

    def __init__(self, ledger: Ledger, figure: str) -> None:
        self._ledger, self._figure = ledger, figure
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._samples: collections.deque[tuple[float, dict[int, float]]] = collections.deque()
        self._thread = threading.Thread(target=self._sample, name="status-samples", daemon=True)
        self._thread.start()

    def per_second(self) -> dict[int, float]:
        """Return the rate of each shard; of none as long as there is nothing to compare."""
        with self._lock:
            if len(self._samples) < 2:
                return {}
            (began, first), (ended, last) = self._samples[0], self._samples[-1]
        return {shard: (after - first.get(shard, 0)) / (ended - began) for shard, after in last.items()}

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._thread.join(5.0)

    def _sample(self) -> None:
        while not self._closed.wait(_SAMPLE_SECONDS):
            counts = self._ledger.shards()
            now = time.monotonic()
            with self._lock:
                self._samples.append((now, {shard: each.get(self._figure, 0) for shard, each in counts.items()}))
                while self._samples and self._samples[0][0] < now - _RATE_SECONDS:
                    self._samples.popleft()
