"""kafka-mq-go's hand-off: Starts through the producer shared by all queues, then offsets through the group member."""

import threading
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Message

from thresher.kafka.partitioners import murmur2_partition
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import refusal_of
from thresher.queue.configuration import QueueConfig
from thresher.queue.hand_off.group import GroupMember
from thresher.queue.hand_off.polled_records import Batch
from thresher.queue.hand_off.protocol import (
    CommitOffsets,
    Effect,
    Flush,
    NoMember,
    Refused,
    Steps,
    Uncertain,
    WriteStarts,
    at_least_once,
)
from thresher.queue.hand_off.starts import judged, records_of
from thresher.queue.markers import Markers
from thresher.queue.sending.shared_producer import SharedProducer

# How long the query for the number of partitions may take.
_ANSWER_SECONDS = 10.0


class TwoSteps:
    """The hand-off of one consumer without transactions. For one thread."""

    def __init__(self, queue: bytes, config: QueueConfig, markers: Markers, producer: SharedProducer) -> None:
        self._queue, self._config, self._markers, self._producer = queue, config, markers, producer
        self._answered = threading.Semaphore(0)
        self._waiting = 0
        self._faults: list[tuple[KafkaError, str]] = []
        self.partition = 0

    def steps(self, batch: Batch) -> Steps:
        """Return the hand-off of a batch."""
        return at_least_once(batch)

    def renew(self) -> None:
        """Do nothing: there is no open transaction."""

    def close(self) -> None:
        """Do nothing: the producer is shared."""

    def commit_first(self, ends: Mapping[int, int], member: GroupMember) -> None:
        """Commit the group's first offsets. Raises `BrokerLost` if that is not certain."""
        if (answer := member.commit(ends)) is not None:
            raise BrokerLost(f"the first offsets of queue {self._queue!r} were not committed: {answer.why}")

    def do(self, effect: Effect, member: GroupMember) -> NoMember | Refused | Uncertain | None:
        """Run one step."""
        match effect:
            case WriteStarts(batch):
                return self._write(batch)
            case Flush():
                return self._flush()
            case CommitOffsets(batch):
                return member.commit({partition: span.end for partition, span in batch.spans.items()})
        raise AssertionError(f"{effect} belongs to a transaction")

    def _write(self, batch: Batch) -> Uncertain | None:
        """Queue the Starts, or the dead letter."""
        answered = threading.Semaphore(0)
        faults: list[tuple[KafkaError, str]] = []
        self._answered, self._faults, self._waiting = answered, faults, 0

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                faults.append((error, message.topic() or ""))
            answered.release()

        try:
            self.partition = self._markers.partition(self._queue)
            records = records_of(self._queue, batch, self._config, self.partition, self._dead_partition)
            for topic, value, key, partition, _, headers in records:
                self._producer.produce(topic, value or b"", key or b"", report, partition=partition, headers=headers)
                self._waiting += 1
        except BrokerLost as error:
            return Uncertain(str(error))
        except KafkaException as error:
            faults.append((error.args[0], self._config.marker_topic))
        return None

    def _dead_partition(self, key: bytes) -> int:
        return murmur2_partition(key, self._producer.partitions(self._config.dead_topic, _ANSWER_SECONDS))

    def _flush(self) -> Refused | Uncertain | None:
        """Wait for the broker's answers."""
        deadline = time.monotonic() + self._config.send_timeout / 1000 + 5.0
        for _ in range(self._waiting):
            if not self._answered.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return Uncertain("the Starts were not confirmed in time")
        return judged((refusal_of(error), error.str(), topic) for error, topic in self._faults)
