"""A relay with topic locks as a workload of a service: joins the group, and runs its workers on the engine.

Any number of processes run at once, without an election. A process leaves the group without a step of its own: locks
that it has not freed expire.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from thresher.core.errors import Superseded
from thresher.delivery.leader.dead_hint import dead_command
from thresher.delivery.leader.held_topics import HeldTopics
from thresher.delivery.leader.server_probes import server_probes
from thresher.delivery.names import sessions, visitor
from thresher.relay.leader.shard_marks import ShardMarks
from thresher.relay.leader.watch import RelayWatch
from thresher.relay.leader.workload import explain_lock, rows_wait
from thresher.relay.report.metrics import WORDING
from thresher.relay.report.status import RelayReport
from thresher.relay.settings import POLICY, Coordination, Settings, ShardAssignment
from thresher.relay.store import driver_store_of
from thresher.relay.topic_lock.joining import join
from thresher.service.report import Observed
from thresher.service.workload import PeriodicCheck
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy

_LOOK_SECONDS = 10.0
_INCARNATION_SECONDS = 1.0


class TopicLockWorkload:
    """One member of a group. `hook` is the import path of a function that is called at each crash point: for tests."""

    wording = WORDING
    preload = ("thresher.relay.topic_lock.steps",)

    def __init__(self, settings: Settings, *, policy: Policy | None = None, hook: str | None = None) -> None:
        self.settings = settings
        self._policy, self._hook = policy or POLICY, hook

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
        """Check nothing: mistakes show only once the servers are asked."""

    def take_over(self, term: str, wanted: Callable[[], bool]) -> "TopicLockTerm | None":
        """Join the group. `term` is this member's own; the group's term is in the assignment."""
        assignment = join(self.settings, wanted)
        return None if assignment is None else TopicLockTerm(term, replace(assignment, hook=self._hook), self._policy)

    def report(self, observed: Observed) -> RelayReport:
        """Return the relay's part of the status and metrics pages."""
        return RelayReport(self.settings, observed, ShardMarks(self.settings.name))


class TopicLockTerm:
    """One membership of a process in the group."""

    def __init__(self, id_: str, assignment: ShardAssignment, policy: Policy = POLICY) -> None:
        self._id, self._assignment, self._policy = id_, assignment, policy
        settings = assignment.settings
        self._held = HeldTopics(settings.name, hint=dead_command(settings.outbox, settings.shape, "list"))
        self._watch: RelayWatch | None = None

    @property
    def id(self) -> str:
        """The member's own term."""
        return self._id

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of each worker: a signal for each round, and the work."""
        settings, config = self._assignment.settings, {"assignment": self._assignment}
        functions = ("rounds", "work")
        steps = tuple(Step(function=f"thresher.relay.topic_lock.steps:{each}", config=config) for each in functions)
        return Pipeline(name=settings.name, shards=settings.shards, steps=steps, policy=self._policy)

    @property
    def alarms(self) -> Mapping[str, str]:
        """The alarms: topics whose rows wait, and changes that the watch has found."""
        watch = self._watch
        return self._held.alarms if watch is None else {**self._held.alarms, **watch.alarms}

    @contextmanager
    def watch(self) -> Iterator[Sequence[PeriodicCheck]]:
        """Yield the checks: the database's incarnation, then those of `RelayWatch`."""
        with closing(RelayWatch(self._assignment)) as watch:
            self._watch = watch
            yield (
                PeriodicCheck(at="database", run=self.check_incarnation, every_seconds=_INCARNATION_SECONDS),
                *watch.checks,
            )

    def check_incarnation(self) -> None:
        """Raise `Superseded` if the database was restarted or the table replaced: all must be settled again first."""
        settings = self._assignment.settings
        name = f"{sessions(settings.name, self._assignment.term)}/i"
        with closing(driver_store_of(settings, _LOOK_SECONDS).session(name)) as session:
            since = session.incarnation().since
        if since != self._assignment.since:
            raise Superseded("the database was restarted or the outbox was replaced: everything is settled again first")

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Handle an event of a shard."""
        self._held.observe(shard, event, fields)

    def work_waits(self) -> bool:
        """Whether any row is pending."""
        return rows_wait(self._assignment)

    def explain(self, shard: int, step: str) -> str | None:
        """Return which session holds the lock that a session of the shard waits for; None if none waits."""
        del step
        return explain_lock(self._assignment, shard)

    def taken_back(self) -> bool:
        """Whether the outbox is still relayed by topic locks: then this member joins the group again."""
        settings = self._assignment.settings
        with closing(driver_store_of(settings, _LOOK_SECONDS).session(visitor(settings.name))) as session:
            row = session.control.read(settings.name)
        return row is not None and row.mode == Coordination.TOPIC_LOCK
