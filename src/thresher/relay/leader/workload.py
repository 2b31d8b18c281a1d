"""The relay as a workload of a service: takes over an outbox, and has its rows relayed by shards on the engine.

`RelayTerm` is one take-over. Its mandate travels to the shards, whose writes are refused once a newer term is in the
control row or their producers are fenced. So a leader that crashes or stalls needs nobody to clean up before the next.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from thresher.delivery.transforms import load
from thresher.relay.leader.alarms import HeldTopics
from thresher.relay.leader.take_over import take_over
from thresher.relay.leader.watch import RelayWatch
from thresher.relay.names import progress_topic, sessions
from thresher.relay.report.metrics import WORDING
from thresher.relay.report.status import RelayReport
from thresher.relay.settings import POLICY, Mandate, Settings
from thresher.relay.store import store_of
from thresher.service.report import Observed
from thresher.service.workload import Look
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy

# All that shards need.
PRELOAD = ("thresher.relay.shard.steps", "thresher.delivery.transforms")


class RelayWorkload:
    """One relay. `hook` is a function by import path that is called at each crash point: for tests."""

    wording = WORDING
    preload = PRELOAD

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

    def check(self, *, local: bool) -> None:
        """Load the transforms where they are on this machine: a mistake in a name must not displace a relay."""
        if local:
            load(self.settings.transforms)

    def take_over(self, term: str, wanted: Callable[[], bool]) -> "RelayTerm | None":
        """Become the leader of the outbox."""
        mandate = take_over(self.settings, term=term, wanted=wanted)
        if mandate is None:
            return None
        return RelayTerm(replace(mandate, hook=self._hook), self._policy)

    def report(self, observed: Observed) -> RelayReport:
        """Return what a relay's pages add."""
        return RelayReport(self.settings, observed)


class RelayTerm:
    """One take-over of a relay."""

    def __init__(self, mandate: Mandate, policy: Policy = POLICY) -> None:
        self._mandate, self._policy = mandate, policy
        self._held = HeldTopics(mandate.settings.name)

    @property
    def id(self) -> str:
        """The term in the control row."""
        return self._mandate.term

    @property
    def pipeline(self) -> Pipeline:
        """Read, transform, publish."""
        settings, config = self._mandate.settings, {"mandate": self._mandate}
        steps = [Step(function="thresher.relay.shard.steps:read", config=config)]
        if settings.transforms:
            transforming = {"transforms": settings.transforms, "reserved": progress_topic(settings.name)}
            steps.append(Step(function="thresher.delivery.transforms:apply", config=transforming))
        steps.append(Step(function="thresher.relay.shard.steps:publish", config=config))
        return Pipeline(name=settings.name, shards=settings.shards, steps=tuple(steps), policy=self._policy)

    @property
    def alarms(self) -> Mapping[str, str]:
        """Topics whose rows wait, and why."""
        return self._held.alarms

    @contextmanager
    def watch(self) -> Iterator[Sequence[Look]]:
        """Look at the control row and the progress topic, and trim it."""
        with closing(RelayWatch(self._mandate)) as watch:
            yield watch.looks

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of a shard."""
        self._held.observe(shard, event, fields)

    def taken_back(self) -> bool:
        """Whether the term went with a restore of the database, rather than with a newer relay's take-over."""
        mandate, settings = self._mandate, self._mandate.settings
        with closing(store_of(settings).session(f"{sessions(settings.name, mandate.term)}/r")) as session:
            since = session.incarnation().since
            row = session.control.read(settings.name)
        return since != mandate.since and row is not None and row.term_time < mandate.term_time
