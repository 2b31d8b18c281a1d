"""The capture as a workload of a service: takes over its topics, and lets shards apply their records.

`CaptureTerm` is one leadership. Its term in the database only makes an older leader end. The stored offsets fence every
batch, whichever process applies it.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import KafkaException
from psycopg import Connection

from thresher.capture.failing_topics import why_fails
from thresher.capture.reader import why_waits
from thresher.capture.report.metrics import HANDLING, WORDING
from thresher.capture.report.report import CaptureReport
from thresher.capture.settings import POLICY, CaptureSettings, placed_settings
from thresher.capture.start_offsets import begin_topics, facts_of
from thresher.capture.store.explained import explained
from thresher.capture.store.offsets import StoredOffsets
from thresher.capture.store.schema import require_no_guards, require_schema
from thresher.capture.store.tables import HOLDING_SESSION, sessions, shard_sessions, visitor
from thresher.capture.targets import require_functions
from thresher.core.errors import Superseded
from thresher.db import statement
from thresher.db.lock_holder import held_by
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import Leading, connect, connect_within, end_sessions, lock_holders
from thresher.kafka.admin import Admin
from thresher.kafka.problem import broker_problem
from thresher.service.report import Observed
from thresher.service.workload import PeriodicCheck
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy

logger = logging.getLogger(__name__)

# The metrics have these names too: thresher_database_up, thresher_broker_up.
SERVERS = ("database", "broker")
# The module that shards need.
PRELOAD = ("thresher.capture.shard",)
_TERM_SECONDS, _TOPIC_SECONDS = 2.0, 10.0
# The time-out for the database's answers to the driver.
_ANSWER_SECONDS = 10.0


class CaptureWorkload:
    """One capture. `hook` is the import path of a function that is called at each crash point: for tests."""

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
        """The number of shards."""
        return self.settings.shards

    @property
    def probes(self) -> Mapping[str, Callable[[], None]]:
        """The checks whether the database and the broker can be reached."""
        return dict(zip(SERVERS, (self._reach_database, self._reach_broker), strict=True))

    def check(self, *, local: bool) -> None:
        """Import handlers and decoders if they run on this machine: a wrong name must not displace a leader."""
        if local:
            require_functions(self.settings.mappings)

    def take_over(self, term: str, wanted: Callable[[], bool]) -> "CaptureTerm | None":
        """Check tables and topics, write the term, and end the sessions of older terms, which may hold locks."""
        application = f"{sessions(self.settings.name, term)}/t"
        settings = placed_settings(self.settings, application)
        with closing(_connect(settings, application)) as connection, explained():
            require_schema(connection, settings.tables, settings.mappings)
            admin = Admin.of(settings.kafka)
            facts = facts_of(admin, settings.topics)
            if not wanted():
                return None
            offsets = StoredOffsets(connection, settings.tables, settings.name)
            _require_no_guards(settings, term, {topic for topic, _ in offsets.read()})
            with connection.transaction():
                begin_topics(admin, offsets, facts)
            taken = statement("capture_term_take", settings.tables.captures)
            OwnCursor(connection).execute(taken, [settings.name, term])
            kept = end_sessions(
                connection,
                Leading(terms=settings.tables.captures),
                starting=sessions(settings.name),
                but=sessions(settings.name, term),
            )
        if kept:
            logger.warning(
                "sessions of an older term were not ended, because this role may not: %s", ", ".join(kept),
                extra={"capture": settings.name},
            )  # fmt: skip
        return CaptureTerm(term, settings, self._policy, self._hook)

    def report(self, observed: Observed) -> CaptureReport:
        """Return the capture's part of the pages."""
        return CaptureReport(self.settings, observed)

    def _reach_database(self) -> None:
        connect(self.settings.dsn, visitor(self.settings.name, "probe")).close()

    def _reach_broker(self) -> None:
        try:
            # No log lines of the client: they would repeat the probe's error.
            Admin.of({"log_level": 0, **self.settings.kafka}).require_answer()
        except KafkaException as error:
            raise broker_problem("the broker was not reached", error.args[0]) from error


class CaptureTerm:
    """One leadership of a capture."""

    def __init__(self, term: str, settings: CaptureSettings, policy: Policy, hook: str | None) -> None:
        self._term, self._settings, self._policy, self._hook = term, settings, policy, hook
        # By shard: the first offsets of the unreadable batches before which its partitions stand still.
        self._unreadable: dict[int, Mapping[str, int]] = {}
        # By shard: the topics whose records keep failing, with the reasons.
        self._failing: dict[int, Mapping[str, str]] = {}

    @property
    def alarms(self) -> Mapping[str, str]:
        """The topics and partitions that stand still, with what to do. A bare topic would count as a held one."""
        batches, topics = [*self._unreadable.values()], [*self._failing.values()]
        return {
            **{where: why_waits(first) for some in batches for where, first in sorted(some.items())},
            **{f"topic {topic}": why_fails(what) for some in topics for topic, what in sorted(some.items())},
        }

    @property
    def id(self) -> str:
        """The term."""
        return self._term

    @property
    def pipeline(self) -> Pipeline:
        """Read, apply."""
        config = {"settings": self._settings, "term": self._term, "hook": self._hook}
        steps = tuple(Step(function=f"thresher.capture.shard:{name}", config=config) for name in ("read", "apply"))
        return Pipeline(name=self._settings.name, shards=self._settings.shards, steps=steps, policy=self._policy)

    @contextmanager
    def watch(self) -> Iterator[Sequence[PeriodicCheck]]:
        """Give the checks of the term and the topics."""
        yield (
            PeriodicCheck(at="database", run=self._check_term, every_seconds=_TERM_SECONDS),
            PeriodicCheck(at="broker", run=self._check_topics, every_seconds=_TOPIC_SECONDS),
        )

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Handle an event of a shard."""
        if event == "dead":
            message = "%d records of %s could not be applied (%s): see 'thresher capture dead list -c FILE'"
            extra = {"capture": self._settings.name, "shard": shard}
            logger.warning(message, fields["records"], fields["topic"], fields["kind"], extra=extra)
        elif event == "capturing":
            # A new attempt of the shard meets the batches anew.
            self._unreadable[shard], self._failing[shard] = {}, {}
        elif event == "unreadable":
            self._unreadable[shard] = fields["batches"]
        elif event == "failing":
            for topic in fields["topics"].keys() - self._failing.get(shard, {}).keys():
                extra = {"capture": self._settings.name, "shard": shard}
                logger.error("%s waits: %s", topic, why_fails(fields["topics"][topic]), extra=extra)
            self._failing[shard] = fields["topics"]

    def work_waits(self) -> bool:
        """Whether there is anything to do. Always: records may come at any time."""
        return True

    def explain(self, shard: int, step: str) -> str | None:
        """Say why a step hangs: a handler has not returned, or who holds the lock that the shard waits for."""
        if step == HANDLING:
            return "a handler has not returned"
        with closing(self._visit("e")) as connection:
            return held_by(lock_holders(connection, shard_sessions(self._settings.name, self._term, shard)))

    def taken_back(self) -> bool:
        """Whether a restore of the database removed the term. A newer leader would have written another one."""
        return self._term_now() is None

    def _check_term(self) -> None:
        now = self._term_now()
        if now != self._term:
            raise Superseded(
                f"another process has taken over the capture {self._settings.name}: the term is {now or 'none'}, and "
                f"ours is {self._term}; this process ends"
            )

    def _check_topics(self) -> None:
        facts_of(Admin.of(self._settings.kafka), self._settings.topics)

    def _term_now(self) -> str | None:
        with closing(self._visit("w")) as connection, explained():
            read = statement("capture_term_read", self._settings.tables.captures)
            row = OwnCursor(connection).execute(read, [self._settings.name]).fetchone()
        return None if row is None else str(row[0])

    def _visit(self, what: str) -> Connection[Any]:
        return _connect(self._settings, f"{sessions(self._settings.name, self._term)}/{what}")


def _require_no_guards(settings: CaptureSettings, term: str, known: Collection[str]) -> None:
    if new := [each for each in settings.mappings if each.topic not in known]:
        # In a session without a statement time-out: the tables may be large.
        with closing(connect(settings.dsn, f"{sessions(settings.name, term)}/g", HOLDING_SESSION)) as connection:
            require_no_guards(connection, settings.name, new)


def _connect(settings: CaptureSettings, application: str) -> Connection[Any]:
    return connect_within(_ANSWER_SECONDS)(settings.dsn, application)
