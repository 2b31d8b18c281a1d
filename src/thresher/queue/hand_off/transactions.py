"""The transactions of one consumer: translates the producer's results and errors into answers of the hand-off."""

import itertools
import time
from collections.abc import Callable, Mapping

from thresher.kafka.group.offsets import GroupOffset
from thresher.kafka.partitioners import murmur2_partition
from thresher.kafka.problem import BrokerLost
from thresher.kafka.producer_problem import MemberFenced, ProducerProblem
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.transaction.pacing import await_ended
from thresher.kafka.transactional import TransactionalProducer
from thresher.queue.configuration import QueueConfig
from thresher.queue.hand_off.group import GroupMember
from thresher.queue.hand_off.polled_records import Batch
from thresher.queue.hand_off.protocol import (
    Begin,
    Commit,
    Effect,
    Flush,
    NoMember,
    Refused,
    SendOffsets,
    Steps,
    Uncertain,
    WriteStarts,
    exactly_once,
)
from thresher.queue.hand_off.starts import judged, records_of
from thresher.queue.markers import Markers
from thresher.queue.problem import TopicsUnsuitable


class Transactions:
    """One transactional id, and its current producer. For one thread."""

    def __init__(
        self,
        queue: bytes,
        transactional_id: str,
        config: QueueConfig,
        markers: Markers,
        make: Callable[[str], TransactionalProducer],
    ) -> None:
        self._queue, self._id, self._config = queue, transactional_id, config
        self._markers, self._make = markers, make
        self._producer: TransactionalProducer | None = None
        self._numbers = itertools.count(1)
        self._committed_at = 0.0
        # The marker partition of the transaction's Starts.
        self.partition = 0

    def steps(self, batch: Batch) -> Steps:
        """Return the hand-off of a batch. Each transaction's name contains the transactional id, so it is unique."""
        return exactly_once(batch, lambda: f"{self._id}:{next(self._numbers)}")

    def renew(self) -> None:
        """Replace the producer: any open transaction is ended, and late requests are refused.

        Raises `ProducerProblem` if that is not certain, and `TopicsUnsuitable` if a topic is gone.
        """
        self.close()
        producer = self._make(self._id)
        producer.init(self._config.marker_topic)
        for topic in (self._config.marker_topic, self._config.dead_topic):
            found = producer.partitions(topic)
            if not isinstance(found, int) and refusal_of(found) is Refusal.TOPIC:
                raise TopicsUnsuitable(f"there is no topic {topic}: make it with 'thresher queue init'")
        self._producer = producer

    def close(self) -> None:
        """Release the producer. An open transaction ends by its time-out."""
        if self._producer is not None:
            self._producer.discard()
            self._producer = None

    def commit_first(self, ends: Mapping[int, int], member: GroupMember) -> None:
        """Commit the group's first offsets. Raises `BrokerLost` if that is not certain."""
        for step in (
            self._begin,
            lambda producer: self._send_offsets(producer, ends, f"{self._id}:first", member),
            lambda producer: producer.commit(),
        ):
            if (answer := self._answer(step)) is not None:
                raise BrokerLost(f"the first offsets of queue {self._queue!r} were not committed: {answer.why}")

    def do(self, effect: Effect, member: GroupMember) -> NoMember | Refused | Uncertain | None:
        """Run one step of a transaction."""
        match effect:
            case Begin():
                return self._answer(self._begin)
            case WriteStarts(batch):
                return self._answer(lambda producer: self._write(producer, batch))
            case Flush():
                return self._answer(
                    lambda producer: judged((fault.refusal, fault.why, fault.topic) for fault in producer.flush())
                )
            case SendOffsets(batch, name):
                if not batch.records:
                    # Without a Start, the offsets are the transaction's first request: wait until the broker has ended
                    # the last one.
                    await_ended(self._committed_at)
                ends = {partition: span.end for partition, span in batch.spans.items()}
                return self._answer(lambda producer: self._send_offsets(producer, ends, name, member))
            case Commit():
                answer = self._answer(lambda producer: producer.commit())
                self._committed_at = time.monotonic()
                return answer
        raise AssertionError(f"{effect} is no step of a transaction")

    def _begin(self, producer: TransactionalProducer) -> None:
        if producer.spent:
            # A broker with slow answers leaves each producer spent. No outcome is in doubt, so no offsets need to be
            # read.
            self.renew()
            producer = self._require_producer()
        producer.begin()

    def _write(self, producer: TransactionalProducer, batch: Batch) -> None:
        self.partition = self._markers.partition(self._queue)
        dead_topic = self._config.dead_topic

        def dead_partition_of(key: bytes) -> int:
            found = producer.partitions(dead_topic)
            if not isinstance(found, int):
                raise BrokerLost(f"{dead_topic}: {found.str()}")
            return murmur2_partition(key, found)

        records = records_of(self._queue, batch, self._config, self.partition, dead_partition_of)
        producer.produce(enumerate(records))

    def _send_offsets(
        self, producer: TransactionalProducer, ends: Mapping[int, int], name: str, member: GroupMember
    ) -> NoMember | None:
        if member.metadata is None:
            return NoMember("the partitions were revoked")
        topic = self._config.message_topic
        producer.send_offsets(
            [GroupOffset(topic=topic, partition=each, offset=end, metadata=name) for each, end in ends.items()],
            member.metadata,
        )
        return None

    def _answer(
        self, call: Callable[[TransactionalProducer], NoMember | Refused | Uncertain | None]
    ) -> NoMember | Refused | Uncertain | None:
        try:
            return call(self._require_producer())
        except MemberFenced as error:
            return NoMember(str(error))
        except (ProducerProblem, BrokerLost) as error:
            return Uncertain(str(error))

    def _require_producer(self) -> TransactionalProducer:
        if self._producer is None:
            raise ProducerProblem("the producer was closed after an error")
        return self._producer
