"""The relay as a workload of a service: takes an outbox over, and runs its shards on the engine.

`RelayTerm` is the time from one take-over to the next. Its assignment goes to the shards. Their writes are refused once
a newer term is in the control row or their producers are fenced. So nothing has to be cleaned up after a leader that
crashed or stalled.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from thresher.db.lock_holder import held_by
from thresher.db.shape import BUCKETS
from thresher.delivery.leader.dead_hint import dead_command
from thresher.delivery.leader.held_topics import HeldTopics
from thresher.delivery.leader.server_probes import server_probes
from thresher.delivery.names import sessions, shard_sessions
from thresher.delivery.transforms import STEP as TRANSFORM
from thresher.delivery.transforms import load
from thresher.relay.leader.background_work import BackgroundWork
from thresher.relay.leader.shard_marks import ShardMarks
from thresher.relay.leader.take_over import take_over
from thresher.relay.leader.watch import RelayWatch
from thresher.relay.progress_source import reserved_topics
from thresher.relay.report.metrics import WORDING
from thresher.relay.report.status import RelayReport
from thresher.relay.settings import POLICY, Settings, ShardAssignment
from thresher.relay.store import driver_store_of
from thresher.service.report import Observed
from thresher.service.workload import PeriodicCheck
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy

# The time-outs of statements: when the term is gone, and for other questions.
_LOOK_SECONDS, _EXPLAIN_SECONDS = 10.0, 5.0
# The modules that workers import in advance.
PRELOAD = ("thresher.relay.shard.steps", "thresher.delivery.transforms")


class RelayWorkload:
    """One relay. `hook` is the import path of a function that is called at each crash point: for tests."""

    wording = WORDING
    preload = PRELOAD

    def __init__(
        self,
        settings: Settings,
        *,
        policy: Policy | None = None,
        hook: str | None = None,
        background_work: BackgroundWork | None = None,
    ) -> None:
        self.settings = settings
        self._policy, self._hook, self._background_work = policy or POLICY, hook, background_work
        self._marks = ShardMarks(settings.name)

    @property
    def name(self) -> str:
        """The relay's name."""
        return self.settings.name

    @property
    def shards(self) -> int:
        """How many shards it has."""
        return self.settings.shards

    @property
    def probes(self) -> Mapping[str, Callable[[], None]]:
        """How to reach its database and its broker."""
        settings = self.settings
        return server_probes(settings.name, settings.data_source, settings.kafka)

    def check(self, *, local: bool) -> None:
        """Import the transforms if workers run on this machine: a mistake must show before a leader is displaced."""
        if local:
            load(self.settings.transform)

    def take_over(self, term: str, wanted: Callable[[], bool]) -> "RelayTerm | None":
        """Become the leader of the outbox."""
        assignment = take_over(self.settings, term=term, wanted=wanted)
        if assignment is None:
            return None
        self._marks.forget()
        return RelayTerm(replace(assignment, hook=self._hook), self._policy, self._marks, self._background_work)

    def report(self, observed: Observed) -> RelayReport:
        """Return the relay's part of the status and metrics pages."""
        return RelayReport(self.settings, observed, self._marks, self._background_work)


class RelayTerm:
    """One term of a relay, from its take-over on."""

    def __init__(
        self,
        assignment: ShardAssignment,
        policy: Policy = POLICY,
        marks: ShardMarks | None = None,
        background_work: BackgroundWork | None = None,
    ) -> None:
        self._assignment, self._policy, self._background_work = assignment, policy, background_work
        self._marks = marks or ShardMarks(assignment.settings.name)
        settings = assignment.settings
        self._held = HeldTopics(settings.name, hint=dead_command(settings.outbox, settings.shape, "list"))
        self._watch: RelayWatch | None = None

    @property
    def id(self) -> str:
        """The term in the control row."""
        return self._assignment.term

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of each shard: read, transform, publish."""
        settings, config = self._assignment.settings, {"assignment": self._assignment}
        reserved = reserved_topics(settings)
        steps = [Step(function="thresher.relay.shard.steps:read", config=config)]
        if settings.transform:
            transforming = {"transforms": settings.transform, "reserved": reserved}
            steps.append(Step(function="thresher.delivery.transforms:apply", config=transforming))
        steps.append(Step(function="thresher.relay.shard.steps:publish", config=config))
        return Pipeline(name=settings.name, shards=settings.shards, steps=tuple(steps), policy=self._policy)

    @property
    def alarms(self) -> Mapping[str, str]:
        """The alarms: topics whose rows wait, changes that the watch has found, and trouble of the archive."""
        watch, background_work = self._watch, self._background_work
        return {
            **self._held.alarms,
            **(watch.alarms if watch else {}),
            **(background_work.alarms if background_work else {}),
        }

    @contextmanager
    def watch(self) -> Iterator[Sequence[PeriodicCheck]]:
        """Yield the checks of the watch, and run the background work meanwhile."""
        application = f"{sessions(self._assignment.settings.name, self._assignment.term)}/a"
        working = nullcontext() if self._background_work is None else self._background_work.during(application)
        with closing(RelayWatch(self._assignment)) as watch, working:
            self._watch = watch
            yield watch.checks

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Handle an event of a shard."""
        self._held.observe(shard, event, fields)
        self._marks.observe(shard, event, fields)

    def work_waits(self) -> bool:
        """Whether any row is pending."""
        return rows_wait(self._assignment)

    def explain(self, shard: int, step: str) -> str | None:
        """Return which session holds the lock that the shard waits for, if it does; or which transforms run."""
        if step == TRANSFORM:
            return f"one of the transforms {', '.join(self._assignment.settings.transform)} has not returned"
        return explain_lock(self._assignment, shard)

    def taken_back(self) -> bool:
        """Whether the term is gone because the database was restored, not because another relay took over."""
        assignment, settings = self._assignment, self._assignment.settings
        name = f"{sessions(settings.name, assignment.term)}/r"
        with closing(driver_store_of(settings, _LOOK_SECONDS).session(name)) as session:
            since = session.incarnation().since
            row = session.control.read(settings.name)
        return since != assignment.since and row is not None and row.term_time < assignment.term_time


def rows_wait(assignment: ShardAssignment) -> bool:
    """Whether any row is pending."""
    settings = assignment.settings
    name = f"{sessions(settings.name, assignment.term)}/r"
    with closing(driver_store_of(settings, _EXPLAIN_SECONDS).session(name)) as session:
        return bool(session.probe(range(BUCKETS)).occupied())


def explain_lock(assignment: ShardAssignment, shard: int) -> str | None:
    """Return which session holds the lock that a session of the shard waits for; None if none waits."""
    settings = assignment.settings
    name = f"{sessions(settings.name, assignment.term)}/e"
    with closing(driver_store_of(settings, _EXPLAIN_SECONDS).session(name)) as session:
        return held_by(session.lock_holders(shard_sessions(settings.name, assignment.term, shard)))
