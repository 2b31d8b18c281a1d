"""The slots of locks: a slot is the number of a partition of the progress topic, and of a transactional id.

A lock keeps its slot for ever. So recovery finds a lock's last progress record as it finds a shard's: as the last
record of one partition. Partitions are added to the progress topic before a slot beyond them is used, and a new
partition is used only once it has a leader.
"""

import time

from confluent_kafka import KafkaError, KafkaException

from thresher.delivery.progress_topic.topic import broker_explained
from thresher.kafka.admin import Admin
from thresher.kafka.problem import BrokerLost

# Partitions are added in steps: one by one, clients would have to refresh their metadata for each topic.
_STEP = 8
# How long new partitions may lack a leader, or be unknown to some brokers, and the pause between two looks.
_SETTLING_SECONDS, _ASK_AGAIN_SECONDS = 5.0, 0.05


class Slots:
    """Adds partitions to the progress topic, so that each slot has one. For one thread."""

    def __init__(self, admin: Admin, topic: str) -> None:
        self._admin, self._topic = admin, topic
        self._partitions = 0
        # Partitions that were seen with a leader.
        self._led: set[int] = set()

    def require(self, slot: int) -> None:
        """Return once the slot's partition has a leader. Raises `BrokerLost` if that takes too long."""
        if slot in self._led:
            return
        with broker_explained():
            self._look()
            if slot >= self._partitions:
                self._widen((slot // _STEP + 1) * _STEP)
                self._look()
            deadline = time.monotonic() + _SETTLING_SECONDS
            while slot not in self._led and time.monotonic() < deadline:
                # The broker that was asked may not know the new partitions yet.
                time.sleep(_ASK_AGAIN_SECONDS)
                self._look()
        if slot not in self._led:
            why = "nobody leads it yet" if slot < self._partitions else f"there are {self._partitions} so far"
            raise BrokerLost(f"partition {slot} of {self._topic} cannot be used: {why}")

    def _widen(self, partitions: int) -> None:
        try:
            self._admin.widen_topic(self._topic, partitions)
        except KafkaException as error:
            # Another process has added the partitions first.
            if error.args[0].code() != KafkaError.INVALID_PARTITIONS:
                raise

    def _look(self) -> None:
        found = self._admin.topic(self._topic)
        self._partitions = 0 if found is None else found.partitions
        self._led = set() if found is None else set(range(found.partitions)).difference(found.leaderless)
