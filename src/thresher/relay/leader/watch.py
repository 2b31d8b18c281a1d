"""The watch of a relay's leader: its control row, its progress topic, and progress to be trimmed.

1. A control row with another term raises `Superseded`. A progress topic that is gone or was replaced raises
   `ForeignProgress`.
2. Progress older than the horizon is trimmed, by the broker's clock alone: by a wrong one, what a restored database
   needs would go. A failed trim is done later.
"""

import logging

from confluent_kafka import KafkaException

from thresher.core.errors import PipelineProblem, Superseded, ThresherError
from thresher.db.control import ControlRow
from thresher.db.outbox_store import StoreSession
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import CommittedTail
from thresher.relay.leader.progress_topic import known_topic
from thresher.relay.names import progress_topic, sessions
from thresher.relay.settings import Mandate
from thresher.relay.store import store_of
from thresher.service.workload import Look

logger = logging.getLogger(__name__)

_TOPIC_SECONDS = 5.0
_TRIM_SECONDS = 60.0


class RelayWatch:
    """Looks over a connection of its own, which is made again when it is lost. For one thread."""

    def __init__(self, mandate: Mandate) -> None:
        self._mandate = mandate
        self._session: StoreSession | None = None
        self._admin = Admin.of(mandate.settings.kafka)
        self._warned = False

    @property
    def looks(self) -> tuple[Look, ...]:
        """The looks, in order."""
        return (
            Look(at="database", run=self.look_at_row),
            Look(at="broker", run=self.look_at_topic, every_seconds=_TOPIC_SECONDS),
            Look(at="progress", run=self.trim, every_seconds=_TRIM_SECONDS),
        )

    def look_at_row(self) -> None:
        """Raise `Superseded` if the term is not ours any more."""
        try:
            row = self._row()
        except PipelineProblem:
            self.close()
            raise
        if row is None or row.term != self._mandate.term:
            raise Superseded("a newer relay of the same name has taken over; this one ends")

    def look_at_topic(self) -> None:
        """Raise `ForeignProgress` if the progress topic is gone, or is another one."""
        known_topic(self._admin, self._mandate.settings.name, self._mandate.progress_topic_id)

    def trim(self) -> None:
        """Remove progress that is older than the newest of its partition by the horizon."""
        settings = self._mandate.settings
        topic = progress_topic(settings.name)
        horizon = int(settings.limits.horizon_seconds * 1000)
        try:
            admin = Admin.of(settings.kafka)
            facts = admin.topic(topic)
            for partition in range(facts.partitions if facts is not None else 0):
                # The last one that is committed stays, however old: it may not be settled yet.
                with CommittedTail(topic, partition, settings.kafka, fenced=False) as tail:
                    if tail.last() is None:
                        continue
                if tail.appended_ms is not None:
                    admin.trim(topic, {partition: tail.offset}, tail.appended_ms - horizon)
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

    def _row(self) -> ControlRow | None:
        settings = self._mandate.settings
        if self._session is None:
            self._session = store_of(settings).session(f"{sessions(settings.name, self._mandate.term)}/w")
        return self._session.control.read(settings.name)
