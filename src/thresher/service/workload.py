"""The port through which a service runs a pipeline: relay, tracker, tail and capture are workloads.

1. `Workload` lives as long as its process. `take_over` makes it the leader, and returns a `Term`.
2. `Term` lives for one take-over: its pipeline runs on the engine, and its watch looks at the servers meanwhile.
3. A term that is not the newest any more raises `Superseded`, from a look or from a shard.

Safety is the workload's own. The service may run an older term while a newer one has begun: a crash, a stall or a lost
election cause that. The servers must refuse the writes of an older term.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from thresher.service.report import Observed, Report
from thresher.service.wording import Wording
from thresher.spark.pipeline import Pipeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One thing that is looked at while a term lasts, and the least time between two looks.

    `Trouble` is noted until a later look succeeds. Any other `PipelineProblem` ends the leadership with it.
    """

    # Its name: trouble is noted under it.
    at: str
    run: Callable[[], None]
    every_seconds: float = 0.0


class Term(Protocol):
    """One take-over, and what it is to do."""

    @property
    def id(self) -> str:
        """The id of the term, which no other one has had."""

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that the engine runs."""

    @property
    def alarms(self) -> Mapping[str, str]:
        """Things that wait, and why. Safe from any thread."""

    def watch(self) -> AbstractContextManager[Sequence[Look]]:
        """Give the looks, in order, to one thread. Leaving closes their connections."""

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event that a shard has reported."""

    def work_waits(self) -> bool:
        """Whether there is anything to do. Raises `Trouble` where that is not known. It may take seconds."""

    def explain(self, shard: int, step: str) -> str | None:
        """Say what a step of a shard that hangs waits for, if that can be known. Asks servers, within a few seconds."""

    def taken_back(self) -> bool:
        """Whether a restore of the database, and no newer term, has superseded it. `Trouble` is tried again."""


class Workload(Protocol):
    """The work of a process that leads."""

    @property
    def name(self) -> str:
        """The identity that all competing processes share."""

    @property
    def shards(self) -> int:
        """How many shards its pipeline has."""

    @property
    def wording(self) -> Wording:
        """Its words."""

    @property
    def preload(self) -> tuple[str, ...]:
        """The modules that its workers need: Spark's worker processes are forked with them."""

    @property
    def probes(self) -> Mapping[str, Callable[[], None]]:
        """How to reach each server that it needs, by the server's name: 'database', 'broker'.

        A probe connects and closes, and issues no query: it runs in a standby too. It raises a `PipelineProblem` where
        the server was not reached. Each is called in a thread of its own.
        """

    def check(self, *, local: bool) -> None:
        """Raise what can be known to be wrong before a leader is displaced; `local`: workers run on this machine."""

    def take_over(self, term: str, wanted: Callable[[], bool]) -> Term | None:
        """Become the leader under this term. Raises what keeps it from that; a retryable error is tried again.

        None if `wanted` says no when the current leader is about to be displaced.
        """

    def report(self, observed: Observed) -> Report:
        """Return its part of the pages. The caller closes it."""
