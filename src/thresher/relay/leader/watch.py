"""The watch of a relay's leader: its control row, what its guarantees rest on, and progress to be trimmed.

1. A control row with another term raises `Superseded`. A progress topic that is gone or was replaced raises
   `ForeignProgress`.
2. What a take-over has seen to is looked at again: the progress topic's retention and policy, the database's identity,
   the table with its indexes, sequence, rules and triggers. What breaks a guarantee raises, and ends the relay. Any
   other change is an alarm.
3. Progress older than the horizon is trimmed, by the broker's clock alone: by a wrong one, what a restored database
   needs would go. A failed trim is done later.
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
from thresher.relay.settings import Mandate
from thresher.relay.store import driver_store_of
from thresher.service.workload import Look

logger = logging.getLogger(__name__)

# How long the database may take to answer a look.
_LOOK_SECONDS = 10.0
_TOPIC_SECONDS = 5.0
# Whoever changes what a guarantee rests on is told within a minute.
_ASSUMED_SECONDS = 20.0
_TRIM_SECONDS = 60.0


class RelayWatch:
    """Looks over a connection of its own, which is made again when it is lost. For one thread."""

    def __init__(self, mandate: Mandate) -> None:
        self._mandate = mandate
        self._session: StoreSession | None = None
        self._admin = Admin.of(mandate.settings.kafka)
        self._warned = False
        # What has changed since the take-over, and how; and strangers' records, by partition. Replaced as a whole.
        self._changes: dict[str, str] = {}
        self._strangers: dict[str, str] = {}

    @property
    def alarms(self) -> dict[str, str]:
        """What somebody should look at, and why. Safe from any thread."""
        return {**self._changes, **self._strangers}

    @property
    def looks(self) -> tuple[Look, ...]:
        """The looks, in order."""
        return (
            Look(at="database", run=self.look_at_row),
            Look(at="broker", run=self.look_at_topic, every_seconds=_TOPIC_SECONDS),
            Look(at="database", run=self.look_at_outbox, every_seconds=_ASSUMED_SECONDS),
            Look(at="broker", run=self.look_at_policy, every_seconds=_ASSUMED_SECONDS),
            Look(at="progress", run=self.trim, every_seconds=_TRIM_SECONDS),
        )

    def look_at_row(self) -> None:
        """Raise `Superseded` if the term is not ours any more."""
        with self._asking() as session:
            row = session.control.read(self._mandate.settings.name)
        if row is None or row.term != self._mandate.term:
            raise Superseded("a newer relay of the same name has taken over; this one ends")

    def look_at_topic(self) -> None:
        """Raise `ForeignProgress` if the progress topic is gone, or is another one."""
        name = self._mandate.settings.name
        known_topic(self._admin, progress_topic(name), self._mandate.progress_topic_id, pipeline=name)

    def look_at_policy(self) -> None:
        """Raise `BrokerRefused` if the broker would remove progress by itself."""
        require_kept(self._admin, progress_topic(self._mandate.settings.name))

    def look_at_outbox(self) -> None:
        """Raise `DatabaseRefused` or `ForeignProgress` if table or database are not what guarantees rest on."""
        settings = self._mandate.settings
        with self._asking() as session:
            row, system_id = session.control.read(settings.name), session.incarnation().system_id
            if row is not None:
                require_known_system(settings.name, row, system_id)
            found = require_usable(session, settings)
        changes = {what: how for what, how in found.items() if what not in self._mandate.differences}
        for what, how in changes.items():
            if what not in self._changes:
                logger.warning("%s: %s", what, how, extra={"relay": settings.name})
        self._changes = changes

    def trim(self) -> None:
        """Remove progress that is older than the newest of its partition by the horizon."""
        settings = self._mandate.settings
        source = progress_source(settings)
        topic = source.topic
        horizon = int(settings.limits.horizon_seconds * 1000)
        try:
            admin = Admin.of(settings.kafka)
            facts = admin.topic(topic)
            for partition in range(facts.partitions if facts is not None else 0):
                # The last one that is committed stays, however old: it may not be settled yet.
                with source.log(source.seal(self._mandate.secret, partition), self._mandate.outbox_id) as log:
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
        """Let go of the connection."""
        if self._session is not None:
            self._session.close()
        self._session = None

    def _note_strangers(self, topic: str, partition: int, records: int) -> None:
        """Note how many records of strangers were met among the last ones."""
        what = f"{topic}, partition {partition}"
        others = {each: why for each, why in self._strangers.items() if each != what}
        remedy = "grant nobody else Write on it, and start no older version again"
        why = f"{records} records of strangers are left out: {remedy}"
        if records and self._strangers.get(what) != why:
            logger.warning("%s: %s", what, why, extra={"relay": self._mandate.settings.name})
        self._strangers = {**others, what: why} if records else others

    @contextmanager
    def _asking(self) -> Iterator[StoreSession]:
        """Give a session; one that met a problem is not used again."""
        settings = self._mandate.settings
        try:
            if self._session is None:
                store = driver_store_of(settings, _LOOK_SECONDS)
                self._session = store.session(f"{sessions(settings.name, self._mandate.term)}/w")
            yield self._session
        except PipelineProblem:
            self.close()
            raise
