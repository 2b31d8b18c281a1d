"""The capture as a workload of a service: takes over some topics, and has their records applied by shards.

`CaptureTerm` is one take-over. Its term in the database only tells an older leader to end: every batch is fenced by the
stored offsets, whoever applies it.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import KafkaException
from psycopg import Connection

from thresher.capture.log_starts import begin_topics, facts_of
from thresher.capture.report.metrics import HANDLING, WORDING
from thresher.capture.report.report import CaptureReport
from thresher.capture.settings import POLICY, CaptureSettings
from thresher.capture.store.explained import explained
from thresher.capture.store.offsets import StoredOffsets
from thresher.capture.store.schema import require_no_guards, require_schema
from thresher.capture.store.tables import HOLDING_SESSION, sessions, shard_sessions, visitor
from thresher.capture.targets import require_functions
from thresher.core.errors import Superseded
from thresher.db import statement
from thresher.db.lock_holder import held_by
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import connect, connect_within, end_sessions, lock_holders
from thresher.kafka.admin import Admin
from thresher.kafka.problem import broker_problem
from thresher.service.report import Observed
from thresher.service.workload import Look
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy

logger = logging.getLogger(__name__)

# Also the names of their metrics: thresher_database_up, thresher_broker_up.
SERVERS = ("database", "broker")
# All that shards need.
PRELOAD = ("thresher.capture.shard",)
_TERM_SECONDS, _TOPIC_SECONDS = 2.0, 10.0
# How long the database may take to answer the driver.
_ANSWER_SECONDS = 10.0


class CaptureWorkload:
    """One capture. `hook` is a function by import path that is called at each crash point: for tests."""

    wording = WORDING
    preload = PRELOAD

    def __init__(self, settings: CaptureSettings, *, policy: Policy | None = None, hook: str | None = None) -> None:
        self.settings = settings
        self._policy, self._hook = policy or POLICY, hook

    @property
    def name(self) -> str:
        """The identity that all competing processes share."""
        return self.settings.name

    @property
    def shards(self) -> int:
        """How many shards it has."""
        return self.settings.shards

    @property
    def probes(self) -> Mapping[str, Callable[[], None]]:
        """How to reach its database and its broker."""
        return dict(zip(SERVERS, (self._reach_database, self._reach_broker), strict=True))

    def check(self, *, local: bool) -> None:
        """Import handlers and decoders where they are on this machine: a wrong name must not displace a capture."""
        if local:
            require_functions(self.settings.mappings)

    def take_over(self, term: str, wanted: Callable[[], bool]) -> "CaptureTerm | None":
        """Judge tables and topics, write the term, and end the sessions of older terms: they may hold locks."""
        settings = self.settings
        with closing(_connect(settings, f"{sessions(settings.name, term)}/t")) as connection, explained():
            require_schema(connection, settings.tables, settings.mappings)
            admin = Admin.of(settings.kafka)
            facts = facts_of(admin, settings.topics)
            if not wanted():
                return None
            offsets = StoredOffsets(connection, settings.tables, settings.name)
            self._require_no_guards(term, {topic for topic, _ in offsets.read()})
            with connection.transaction():
                begin_topics(admin, offsets, facts)
            taken = statement("capture_term_take", settings.tables.captures)
            OwnCursor(connection).execute(taken, [settings.name, term])
            end_sessions(connection, starting=sessions(settings.name), but=sessions(settings.name, term))
        return CaptureTerm(term, settings, self._policy, self._hook)

    def _require_no_guards(self, term: str, known: Collection[str]) -> None:
        settings = self.settings
        if new := [each for each in settings.mappings if each.topic not in known]:
            # By a session that may take its time: the tables may be large.
            with closing(connect(settings.dsn, f"{sessions(settings.name, term)}/g", HOLDING_SESSION)) as connection:
                require_no_guards(connection, settings.name, new)

    def report(self, observed: Observed) -> CaptureReport:
        """Return what a capture's pages add."""
        return CaptureReport(self.settings, observed)

    def _reach_database(self) -> None:
        connect(self.settings.dsn, visitor(self.settings.name, "probe")).close()

    def _reach_broker(self) -> None:
        try:
            # The probe's error says it all: the client's own lines would repeat it.
            Admin.of({"log_level": 0, **self.settings.kafka}).greet()
        except KafkaException as error:
            raise broker_problem("the broker was not reached", error.args[0]) from error


class CaptureTerm:
    """One take-over of a capture."""

    def __init__(self, term: str, settings: CaptureSettings, policy: Policy, hook: str | None) -> None:
        self._term, self._settings, self._policy, self._hook = term, settings, policy, hook
        self.alarms: Mapping[str, str] = {}

    @property
    def id(self) -> str:
        """The id of the leadership."""
        return self._term

    @property
    def pipeline(self) -> Pipeline:
        """Read, apply."""
        config = {"settings": self._settings, "term": self._term, "hook": self._hook}
        steps = tuple(Step(function=f"thresher.capture.shard:{name}", config=config) for name in ("read", "apply"))
        return Pipeline(name=self._settings.name, shards=self._settings.shards, steps=steps, policy=self._policy)

    @contextmanager
    def watch(self) -> Iterator[Sequence[Look]]:
        """Look at the term, and at the topics."""
        yield (
            Look(at="database", run=self._look_at_term, every_seconds=_TERM_SECONDS),
            Look(at="broker", run=self._look_at_topics, every_seconds=_TOPIC_SECONDS),
        )

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of a shard."""
        if event == "dead":
            message = "%d records of %s could not be applied (%s): see 'thresher capture dead list -c FILE'"
            extra = {"capture": self._settings.name, "shard": shard}
            logger.warning(message, fields["records"], fields["topic"], fields["kind"], extra=extra)

    def work_waits(self) -> bool:
        """Whether there is anything to do: records may come at any time."""
        return True

    def explain(self, shard: int, step: str) -> str | None:
        """Say who holds the lock that a session of the shard waits for, if one does."""
        if step == HANDLING:
            return "a handler has not returned"
        with closing(self._visit("e")) as connection:
            return held_by(lock_holders(connection, shard_sessions(self._settings.name, self._term, shard)))

    def taken_back(self) -> bool:
        """Whether a restore took the term away: a newer leader would have written another one."""
        return self._term_now() is None

    def _look_at_term(self) -> None:
        now = self._term_now()
        if now != self._term:
            raise Superseded(
                f"another process captures as {self._settings.name}: its term is {now or 'none'}, and ours is "
                f"{self._term}"
            )

    def _look_at_topics(self) -> None:
        facts_of(Admin.of(self._settings.kafka), self._settings.topics)

    def _term_now(self) -> str | None:
        with closing(self._visit("w")) as connection, explained():
            read = statement("capture_term_read", self._settings.tables.captures)
            row = OwnCursor(connection).execute(read, [self._settings.name]).fetchone()
        return None if row is None else str(row[0])

    def _visit(self, what: str) -> Connection[Any]:
        return _connect(self._settings, f"{sessions(self._settings.name, self._term)}/{what}")


def _connect(settings: CaptureSettings, application: str) -> Connection[Any]:
    return connect_within(_ANSWER_SECONDS)(settings.dsn, application)
