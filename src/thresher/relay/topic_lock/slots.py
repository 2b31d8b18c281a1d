"""The slots of locks: each is a partition of the progress topic, and a transactional id of the relay.

A lock keeps its slot for ever, so recovery finds a topic's last progress record where a shard's is found: it is the
last one of its partition. The topic is made wider before a slot beyond its partitions is written to.
"""

import time

from confluent_kafka import KafkaError, KafkaException

from thresher.delivery.progress_topic.topic import broker_explained
from thresher.kafka.admin import Admin
from thresher.kafka.problem import BrokerLost

# Partitions come by so many: adding one for each topic would have clients look again and again.
_STEP = 8
# How long a cluster may take to agree on how many there are.
_SETTLING_SECONDS, _ASK_AGAIN_SECONDS = 5.0, 0.05


class Slots:
    """Sees to it that the progress topic has a partition for each slot. For one thread."""

    def __init__(self, admin: Admin, topic: str) -> None:
        self._admin, self._topic = admin, topic
        self._partitions = 0

    def require(self, slot: int) -> None:
        """Return once the progress topic has the slot's partition. Raises `BrokerLost` where it does not get it."""
        if slot < self._partitions:
            return
        with broker_explained():
            self._look()
            if slot < self._partitions:
                return
            wanted = (slot // _STEP + 1) * _STEP
            try:
                self._admin.widen_topic(self._topic, wanted)
            except KafkaException as error:
                # Another process did it first.
                if error.args[0].code() != KafkaError.INVALID_PARTITIONS:
                    raise
            deadline = time.monotonic() + _SETTLING_SECONDS
            self._look()
            while slot >= self._partitions and time.monotonic() < deadline:
                # Another broker may not have heard of it yet.
                time.sleep(_ASK_AGAIN_SECONDS)
                self._look()
        if slot >= self._partitions:
            raise BrokerLost(f"{self._topic} has {self._partitions} partitions, and does not have partition {slot} yet")

    def _look(self) -> None:
        found = self._admin.topic(self._topic)
        self._partitions = 0 if found is None else found.partitions
