"""The tail as a workload of a service: takes over an outbox, and lets one shard on the engine publish its WAL.

`TailTerm` is one leadership. Its assignment goes to the shard. The shard's writes are refused once the control row has
a newer term, or its producer is fenced. A slot has one reader, so there is one shard.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from thresher.db.lock_holder import held_by
from thresher.delivery.leader.dead_hint import dead_command
from thresher.delivery.leader.held_topics import HeldTopics
from thresher.delivery.leader.server_probes import server_probes
from thresher.delivery.names import sessions, shard_sessions
from thresher.delivery.transforms import STEP as TRANSFORM
from thresher.delivery.transforms import load
from thresher.service.report import Observed
from thresher.service.workload import PeriodicCheck
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.tail.leader.figures import LatestLogFigures
from thresher.tail.leader.metrics import WORDING
from thresher.tail.leader.report import TailReport
from thresher.tail.leader.take_over import driver_store_of, take_over
from thresher.tail.leader.watch import TailWatch
from thresher.tail.settings import POLICY, TailAssignment, TailSettings
from thresher.tail.shard.refused_messages import EVENT as REFUSED

# Time-outs for the database's answer: whether the term was restored away, and which lock a step waits for.
_LOOK_SECONDS, _EXPLAIN_SECONDS = 10.0, 5.0
# How long it is an alarm that somebody has written messages past the outbox's function.
_REFUSED_SECONDS = 3600.0
# The modules that the shard needs.
PRELOAD = ("thresher.tail.shard.steps", "thresher.delivery.transforms")


class TailWorkload:
    """One tail. `hook` is the import path of a function that is called at each crash point: for tests."""

    wording = WORDING
    preload = PRELOAD
    shards = 1

    def __init__(self, settings: TailSettings, *, policy: Policy | None = None, hook: str | None = None) -> None:
        self.settings = settings
        self._policy, self._hook = policy or POLICY, hook
        self._board = LatestLogFigures()

    @property
    def name(self) -> str:
        """The tail's name."""
        return self.settings.name

    @property
    def probes(self) -> Mapping[str, Callable[[], None]]:
        """The checks whether the database and the broker can be reached."""
        return server_probes(self.settings.name, self.settings.dsn, self.settings.kafka)

    def check(self, *, local: bool) -> None:
        """Load the transforms if they run on this machine: a wrong name must not displace a working tail."""
        if local:
            load(self.settings.transforms)

    def take_over(self, term: str, wanted: Callable[[], bool]) -> "TailTerm | None":
        """Become the reader of the outbox' changes in the WAL."""
        assignment = take_over(self.settings, term=term, wanted=wanted)
        if assignment is None:
            return None
        self._board.figures = self._board.first_xid = None
        return TailTerm(replace(assignment, hook=self._hook), self._policy, self._board)

    def report(self, observed: Observed) -> TailReport:
        """Return the tail's part of the pages."""
        return TailReport(self.settings, observed, self._board)


class TailTerm:
    """One leadership of a tail."""

    def __init__(
        self, assignment: TailAssignment, policy: Policy = POLICY, board: LatestLogFigures | None = None
    ) -> None:
        self._assignment, self._policy, self._board = assignment, policy, board or LatestLogFigures()
        settings = assignment.settings
        self._held = HeldTopics(settings.name, hint=dead_command(settings.outbox, settings.shape, "list"))
        self._watch: TailWatch | None = None
        # What the shard told last of messages that others wrote, and until when that is an alarm.
        self._refused, self._refused_until = "", 0.0

    @property
    def id(self) -> str:
        """The term in the control row."""
        return self._assignment.term

    @property
    def pipeline(self) -> Pipeline:
        """Read, transform, publish."""
        settings, config = self._assignment.settings, {"assignment": self._assignment}
        steps = [Step(function="thresher.tail.shard.steps:read", config=config)]
        if settings.transforms:
            transforming = {"transforms": settings.transforms, "reserved": settings.reserved}
            steps.append(Step(function="thresher.delivery.transforms:apply", config=transforming))
        steps.append(Step(function="thresher.tail.shard.steps:publish", config=config))
        return Pipeline(name=settings.name, shards=1, steps=tuple(steps), policy=self._policy)

    @property
    def alarms(self) -> Mapping[str, str]:
        """The held topics with their reasons, and the alarms of the watch."""
        watch = self._watch
        refused = {"refused messages": self._refused} if time.monotonic() < self._refused_until else {}
        return {**self._held.alarms, **(watch.alarms if watch else {}), **refused}

    @contextmanager
    def watch(self) -> Iterator[Sequence[PeriodicCheck]]:
        """Give the checks of control row, slot and progress topic, and the clean-up."""
        with closing(TailWatch(self._assignment, self._board)) as watch:
            self._watch = watch
            yield watch.checks

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Handle an event of the shard."""
        if event == "log read":
            self._board.first_xid = fields["first_xid"]
            return
        if event == REFUSED:
            self._refused_until = time.monotonic() + _REFUSED_SECONDS
            self._refused = (
                f"{fields['messages']} messages in the WAL were not published, the last at {fields['at']}: "
                f"{fields['why']}. 'thresher tail slot check --via log' says who may write there"
            )
            return
        self._held.observe(shard, event, fields)

    def work_waits(self) -> bool:
        """Whether there is anything to do. Always: commits may come at any time."""
        return True

    def explain(self, shard: int, step: str) -> str | None:
        """Say why a step hangs: who holds the lock that the shard waits for, or which transforms run."""
        settings = self._assignment.settings
        if step == TRANSFORM:
            return f"of {', '.join(settings.transforms)}, one has not returned"
        name = f"{sessions(settings.name, self._assignment.term)}/e"
        with closing(driver_store_of(settings, _EXPLAIN_SECONDS).session(name)) as session:
            return held_by(session.lock_holders(shard_sessions(settings.name, self._assignment.term, shard)))

    def taken_back(self) -> bool:
        """Whether the term is gone since the database was restored, rather than since a newer tail took over."""
        assignment, settings = self._assignment, self._assignment.settings
        name = f"{sessions(settings.name, assignment.term)}/r"
        with closing(driver_store_of(settings, _LOOK_SECONDS).session(name)) as session:
            since = session.incarnation().since
            row = session.control.read(settings.name)
        return since != assignment.since and row is not None and row.term_time < assignment.term_time
