"""The port through which a service runs a pipeline: relay, tracker, tail and capture are workloads.

1. `Workload` lives as long as its process. `take_over` makes the process the leader, and returns a `Term`.
2. `Term` lives for one take-over: its pipeline runs on the engine, while the service's watch runs its checks.
3. Once a newer term exists, a check or a shard of the older term raises `Superseded`.

The workload itself has to be safe. After a crash, a pause or a lost election, the service may run an older term beside
a newer one. The servers must refuse the writes of the older term.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from thresher.service.report import Observed, Report
from thresher.service.wording import Wording
from thresher.spark.pipeline import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicCheck:
    """A periodic check that the watch runs while a term lasts, with the least time between two runs.

    A `Trouble` that it raises is noted until a later run succeeds. Any other `PipelineProblem` ends the leadership.
    """

    # The name of the checked thing, such as a server's: a `Trouble` is noted under it.
    at: str
    run: Callable[[], None]
    every_seconds: float = 0.0


class Term(Protocol):
    """The result of one take-over: a pipeline to run, and checks to run beside it."""

    @property
    def id(self) -> str:
        """The id of the term. No other term has the same."""

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that the engine runs."""

    @property
    def alarms(self) -> Mapping[str, str]:
        """Things that wait, such as topics, and why. Safe in any thread."""

    def watch(self) -> AbstractContextManager[Sequence[PeriodicCheck]]:
        """Open the checks, for one thread, in the order of their runs. Leaving closes their connections."""

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Handle an event that a shard has reported."""

    def work_waits(self) -> bool:
        """Whether work waits. Raises `Trouble` if that cannot be known. May take seconds."""

    def explain(self, shard: int, step: str) -> str | None:
        """Return why a step of a shard hangs, if that can be known. Asks servers, for a few seconds at most."""

    def taken_back(self) -> bool:
        """Whether a restore of the database, not a newer term, removed this term. `Trouble` leads to another call."""


class Workload(Protocol):
    """The work of a process that leads."""

    @property
    def name(self) -> str:
        """The name of the pipeline, which all competing processes share."""

    @property
    def shards(self) -> int:
        """The number of shards of its pipeline."""

    @property
    def wording(self) -> Wording:
        """The words for the pipeline in metrics, pages and the log."""

    @property
    def preload(self) -> tuple[str, ...]:
        """The modules that Spark's worker daemon imports before it forks workers, so that they start faster."""

    @property
    def probes(self) -> Mapping[str, Callable[[], None]]:
        """A probe for each server that the workload needs, by the server's name: 'database', 'broker'.

        A probe connects and disconnects without a query, because it runs in a standby too. It raises a
        `PipelineProblem` if the server was not reached. Each probe is called in a thread of its own.
        """

    def check(self, *, local: bool) -> None:
        """Raise the errors that can be found before a leader is displaced. `local`: workers run on this machine."""

    def take_over(self, term: str, wanted: Callable[[], bool]) -> Term | None:
        """Become the leader under this term. After a retryable error, it is called again.

        Returns None if `wanted` returns false just before the current leader is displaced.
        """

    def report(self, observed: Observed) -> Report:
        """Return the workload's part of the pages. The caller closes it."""
