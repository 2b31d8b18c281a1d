"""Watches what a relay's leader depends on, and trims its progress topic.

1. A control row with another term raises `Superseded`. A progress topic that is gone or was replaced raises
   `ForeignProgress`.
2. The checks of a take-over are repeated: the progress topic's retention and policy, the database's identity, the table
   with its indexes, sequence, rules and triggers. A change that breaks a guarantee raises an error, and ends the relay.
   Any other change is an alarm.
3. Progress older than the horizon is trimmed, by the broker's clock alone: a wrong clock would remove progress that is
   needed after a restore. A trim that failed is repeated later.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException

from thresher.core.errors import PipelineProblem, Superseded, ThresherError
from thresher.db.outbox_store import StoreSession
from thresher.delivery.leader.control_row import require_known_system
from thresher.delivery.names import progress_topic, sessions
from thresher.delivery.progress_topic.topic import known_topic, require_kept
from thresher.kafka.admin import Admin
from thresher.relay.leader.assumptions import require_usable
from thresher.relay.progress_source import progress_source
from thresher.relay.settings import ShardAssignment
from thresher.relay.store import driver_store_of
from thresher.service.workload import PeriodicCheck

logger = logging.getLogger(__name__)

# The time-out of a statement.
_LOOK_SECONDS = 10.0
_TOPIC_SECONDS = 5.0
# A change that breaks a guarantee is noticed within a minute.
_ASSUMED_SECONDS = 20.0
_TRIM_SECONDS = 60.0


class RelayWatch:
    """The checks of one term, over a connection of its own that is reopened after an error. For one thread."""

    def __init__(self, assignment: ShardAssignment) -> None:
        self._assignment = assignment
        self._session: StoreSession | None = None
        self._admin = Admin.of(assignment.settings.kafka)
        self._warned = False
        # Changes since the take-over; and foreign records, by partition. Replaced as a whole, for other threads.
        self._changes: dict[str, str] = {}
        self._foreign_records: dict[str, str] = {}

    @property
    def alarms(self) -> dict[str, str]:
        """The alarms: what is wrong, and why. Safe from any thread."""
        return {**self._changes, **self._foreign_records}

    @property
    def checks(self) -> tuple[PeriodicCheck, ...]:
        """The checks, in order."""
        return (
            PeriodicCheck(at="database", run=self.check_row),
            PeriodicCheck(at="broker", run=self.check_topic, every_seconds=_TOPIC_SECONDS),
            PeriodicCheck(at="database", run=self.check_outbox, every_seconds=_ASSUMED_SECONDS),
            PeriodicCheck(at="broker", run=self.check_policy, every_seconds=_ASSUMED_SECONDS),
            PeriodicCheck(at="progress", run=self.trim, every_seconds=_TRIM_SECONDS),
        )

    def check_row(self) -> None:
        """Raise `Superseded` if the term is not ours any more."""
        with self._asking() as session:
            row = session.control.read(self._assignment.settings.name)
        if row is None or row.term != self._assignment.term:
            raise Superseded("a newer relay of the same name has taken over; this one ends")

    def check_topic(self) -> None:
        """Raise `ForeignProgress` if the progress topic is gone or was replaced."""
        name = self._assignment.settings.name
        known_topic(self._admin, progress_topic(name), self._assignment.progress_topic_id, pipeline=name)

    def check_policy(self) -> None:
        """Raise `BrokerRefused` if the broker may remove progress by itself."""
        require_kept(self._admin, progress_topic(self._assignment.settings.name))

    def check_outbox(self) -> None:
        """Raise `DatabaseRefused` if the outbox breaks a guarantee, `ForeignProgress` if this is another database."""
        settings = self._assignment.settings
        with self._asking() as session:
            row, system_id = session.control.read(settings.name), session.incarnation().system_id
            if row is not None:
                require_known_system(settings.name, row, system_id)
            found = require_usable(session, settings)
        changes = {what: how for what, how in found.items() if what not in self._assignment.differences}
        for what, how in changes.items():
            if what not in self._changes:
                logger.warning("%s: %s", what, how, extra={"relay": settings.name})
        self._changes = changes

    def trim(self) -> None:
        """Remove progress records that are older than the last one of their partition by more than the horizon."""
        settings = self._assignment.settings
        source = progress_source(settings)
        topic = source.topic
        horizon = int(settings.limits.horizon_seconds * 1000)
        try:
            admin = Admin.of(settings.kafka)
            facts = admin.topic(topic)
            for partition in range(facts.partitions if facts is not None else 0):
                # The last committed record stays, however old: it may not be settled yet.
                with source.log(source.seal(self._assignment.secret, partition)) as log:
                    log.last()
                self._note_strangers(topic, partition, log.met)
                if log.place is None:
                    continue
                if log.place.appended_ms is not None:
                    admin.trim(topic, {partition: log.place.offset}, log.place.appended_ms - horizon)
                elif not self._warned:
                    self._warned = True
                    logger.warning(
                        "%s grows, since its records do not carry the broker's time: set its message.timestamp.type "
                        "to LogAppendTime",
                        topic,
                    )
        except (KafkaException, ThresherError) as error:
            logger.debug("old progress was not trimmed: %s", error)

    def close(self) -> None:
        """Close the connection."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def _note_strangers(self, topic: str, partition: int, records: int) -> None:
        """Set or clear the alarm about foreign records among a partition's last ones."""
        what = f"{topic}, partition {partition}"
        others = {each: why for each, why in self._foreign_records.items() if each != what}
        remedy = "grant nobody else Write on it, and start no older version again"
        why = f"{records} records that this relay did not write are ignored: {remedy}"
        if records and self._foreign_records.get(what) != why:
            logger.warning("%s: %s", what, why, extra={"relay": self._assignment.settings.name})
        self._foreign_records = {**others, what: why} if records else others

    @contextmanager
    def _asking(self) -> Iterator[StoreSession]:
        """Yield the session, opened if there is none. After an error it is closed."""
        settings = self._assignment.settings
        try:
            if self._session is None:
                store = driver_store_of(settings, _LOOK_SECONDS)
                self._session = store.session(f"{sessions(settings.name, self._assignment.term)}/w")
            yield self._session
        except PipelineProblem:
            self.close()
            raise
