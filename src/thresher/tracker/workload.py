"""The tracker as a workload of a service: takes over a pair of topics, and has shards track their markers.

`TrackerTerm` is one take-over. There is no database row that names the leader: the metadata of each partition's
committed offset does (`claims`). Each partition's transactional id is the fence.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaException

from thresher.kafka.admin import Admin
from thresher.kafka.problem import broker_problem
from thresher.service.report import Observed
from thresher.service.workload import PeriodicCheck
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.tracker.claims import claim_all, marker_partitions, offsets_of, require_claim
from thresher.tracker.metrics import WORDING
from thresher.tracker.report import TrackerReport
from thresher.tracker.room import ALARMS
from thresher.tracker.settings import POLICY, TrackerSettings
from thresher.tracker.topics import require_markers, require_suitable

logger = logging.getLogger(__name__)

# Also in the name of the metric thresher_broker_up.
SERVERS = ("broker",)
# The modules that shards import.
PRELOAD = ("thresher.tracker.shard",)
_CLAIM_SECONDS, _TOPIC_SECONDS = 5.0, 30.0


class TrackerWorkload:
    """One tracker. `hook` is the import path of a function that is called at each crash point: for tests."""

    wording = WORDING
    preload = PRELOAD

    def __init__(self, settings: TrackerSettings, *, policy: Policy | None = None, hook: str | None = None) -> None:
        self.settings = settings
        self._policy, self._hook = policy or POLICY, hook

    @property
    def name(self) -> str:
        """The identity shared by all trackers of these topics."""
        return self.settings.name

    @property
    def shards(self) -> int:
        """The number of shards."""
        return self.settings.shards

    @property
    def probes(self) -> Mapping[str, Callable[[], None]]:
        """The functions that check whether each server is reachable."""
        return {SERVERS[0]: self._reach_broker}

    def check(self, *, local: bool) -> None:
        """Do nothing: no problem can be detected without asking the broker."""

    def take_over(self, term: str, wanted: Callable[[], bool]) -> "TrackerTerm | None":
        """Check the topics, and claim the partitions of the marker topic."""
        facts = require_suitable(self.settings)
        require_markers(self.settings)
        if not claim_all(self.settings, term, wanted):
            return None
        settings = replace(self.settings, batch_bytes=facts.batch_bytes)
        more = {"retention_ms": facts.retention_ms, "hook": self._hook, "term": term}
        return TrackerTerm(term, settings, more, self._policy)

    def report(self, observed: Observed) -> TrackerReport:
        """Return the tracker's part of the status page and metrics."""
        return TrackerReport(self.settings, observed)

    def _reach_broker(self) -> None:
        try:
            # The probe raises its own error, so the client's log lines would only repeat it.
            Admin.of({"log_level": 0, **self.settings.kafka}).require_answer()
        except KafkaException as error:
            raise broker_problem("the broker was not reached", error.args[0]) from error


class TrackerTerm:
    """One take-over of a tracker."""

    def __init__(self, term: str, settings: TrackerSettings, more: Mapping[str, Any], policy: Policy) -> None:
        """`more` is additional configuration for the shards."""
        self._term, self._settings, self._more, self._policy = term, settings, more, policy
        # By shard: what it lacks, with what to do.
        self._alarms: dict[int, Mapping[str, str]] = {}

    @property
    def alarms(self) -> Mapping[str, str]:
        """The shards that have little memory or disk left, with what to do."""
        shards = self._alarms.copy()
        return {f"{what} of shard {shard}": why for shard in sorted(shards) for what, why in shards[shard].items()}

    @property
    def id(self) -> str:
        """The id of the leadership."""
        return self._term

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the steps `read` and `track`."""
        config = {"settings": self._settings, **self._more}
        return Pipeline(
            name=self._settings.name,
            shards=self._settings.shards,
            steps=(
                Step(function="thresher.tracker.shard:read", config=config),
                Step(function="thresher.tracker.shard:track", config=config),
            ),
            policy=self._policy,
        )

    @contextmanager
    def watch(self) -> Iterator[Sequence[PeriodicCheck]]:
        """Check periodically the claims, and the topic settings that the guarantees depend on."""
        yield (
            PeriodicCheck(at="broker", run=self._check_claims, every_seconds=_CLAIM_SECONDS),
            PeriodicCheck(at="broker", run=self._check_topics, every_seconds=_TOPIC_SECONDS),
        )

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Log an event of a shard."""
        if event == "lost markers":
            message = "shard %d goes on without %d markers of partition %d, which were removed before they were tracked"
            logger.warning(message, shard, fields["markers"], fields["partition"])
        elif event == ALARMS:
            for what in fields["alarms"].keys() - self._alarms.get(shard, {}).keys():
                logger.warning("%s of shard %d is short: %s", what, shard, fields["alarms"][what])
            self._alarms[shard] = fields["alarms"]
        elif event == "undone":
            message = "a transaction for partition %d of the markers took no effect, and is tried again: %s"
            logger.warning(message, fields["partition"], fields["why"])
        elif event == "dead letters":
            message = "messages that became dead letters: %d; 'thresher queue dead list' shows them"
            logger.warning(message, fields["messages"])
        elif event == "malformed marker":
            message = "offset %d of partition %d of %s is no marker, and was passed over: %s"
            logger.warning(message, fields["offset"], fields["partition"], self._settings.marker_topic, fields["why"])

    def work_waits(self) -> bool:
        """Return True: markers may come at any time."""
        return True

    def explain(self, shard: int, step: str) -> str | None:  # noqa: ARG002 - nothing more is known
        """Return None: only a call of the Kafka client can hang, and nothing more is known about it."""
        return None

    def taken_back(self) -> bool:
        """Return False: without a database, no restore can supersede this term."""
        return False

    def _check_claims(self) -> None:
        require_claim(self._settings, offsets_of(self._settings, marker_partitions(self._settings)), self._term)

    def _check_topics(self) -> None:
        require_suitable(self._settings)
