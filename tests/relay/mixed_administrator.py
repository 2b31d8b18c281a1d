"""The administrator of a random soak, who changes topics, limits and rights, and writes rows that are affected.

The undo of a change is scheduled before the change: a broker that did not answer in time may still have made it.
"""

import itertools
import os

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.faults.guarded import Guard
from tests.faults.mix.agenda import Agenda
from tests.faults.mix.crew import Crew
from tests.faults.mix.programs import REFUSED
from tests.relay.mixed_rows import LARGE_BYTES, OTHER, WIDE, Extra, Rows
from tests.relay.subject import NAME, TOPIC
from thresher.devstack import ports
from thresher.devstack.broker import Kafka
from thresher.kafka.admin import Admin

LOWERED_BYTES = 20_000
# Short: an action that fails because a broker is down is tried again later.
_PATIENCE_SECONDS, _TOLD_SECONDS = 5.0, 2.0


class Administrator:
    """An administrator with all rights. `producers` is the prefix of the pipeline's transactional ids."""

    def __init__(self, kafka: Kafka, rows: Rows, crew: Crew, *, producers: str, agenda: Agenda) -> None:
        self._producers = producers
        self._kafka, self._rows, self._crew, self._agenda = kafka, rows, crew, agenda
        self._guard = Guard(kafka.bootstrap, patience_seconds=_PATIENCE_SECONDS)
        self._admin = Admin(kafka.bootstrap)
        self._numbers = itertools.count()
        # Every topic of the rows.
        self.topics = [TOPIC, WIDE, OTHER]

    def prepare(self) -> None:
        """Grant the relay its rights, and create the additional topics."""
        self._guard.admit(NAME)
        self._admin.create_topic(WIDE, partitions=2)
        self._admin.create_topic(OTHER, partitions=2)

    # Faults

    def raise_partitions(self) -> None:
        """Add a partition. Its rows have no key, because keys would move; some rows name the new partition."""
        found = self._admin.topic(WIDE)
        assert found is not None
        self._admin.widen_topic(WIDE, found.partitions + 1)
        # On a node that does not know the new partition yet, a row for it would be refused.
        newest = [found.partitions] if self._known(WIDE, found.partitions + 1) else []
        self._rows.stash(Extra(topic=WIDE, partition=place) for place in (None, 0, *newest, None))

    def topic_denied(self, seconds: float) -> None:
        self._agenda.later(seconds, "allow", lambda: self._guard.allow_topic(TOPIC))
        self._guard.deny_topic(TOPIC)

    def other_topic_denied(self, seconds: float) -> None:
        self._agenda.later(seconds, "allow", lambda: self._guard.allow_topic(OTHER))
        self._guard.deny_topic(OTHER)
        self._rows.stash(Extra(topic=OTHER, key=f"key-{number}") for number in range(5))

    def producer_denied(self, seconds: float) -> None:
        self._crew.excuse(REFUSED)
        self._agenda.later(seconds, "allow", lambda: self._guard.allow_producers(self._producers))
        self._guard.deny_producers(self._producers)

    def limit_lowered(self, seconds: float) -> None:
        self._agenda.later(seconds, "limit", lambda: self._guard.limit(TOPIC, None))
        self._guard.limit(TOPIC, LOWERED_BYTES)
        self._rows.stash(
            Extra(key=self._rows.key(number), value=os.urandom(LARGE_BYTES), doubtful=True) if number % 2 else
            Extra(key=self._rows.key(number)) for number in range(6)
        )  # fmt: skip

    def topic_missing(self, seconds: float) -> None:
        name = f"{NAME}.missing-{next(self._numbers)}"
        self.topics.append(name)
        self._agenda.later(seconds, f"create {name}", lambda: self._create(name))
        self._rows.stash(Extra(topic=name, key=f"key-{number % 4}") for number in range(20))

    def _create(self, name: str) -> None:
        if self._admin.topic(name) is None:
            self._admin.create_topic(name, partitions=2)

    def _known(self, topic: str, partitions: int) -> bool:
        """Whether every running node knows that a topic has this many partitions; a paused node does not answer."""
        return all(
            self._told(node, topic) == partitions for node, server in self._kafka.nodes.items() if server.running
        )

    def _told(self, node: int, topic: str) -> int:
        client = AdminClient({"bootstrap.servers": f"{ports.HOST}:{self._kafka.port(node=node)}", "log_level": 0})
        try:
            return len(client.list_topics(topic, timeout=_TOLD_SECONDS).topics[topic].partitions)
        except KafkaException:
            return 0
