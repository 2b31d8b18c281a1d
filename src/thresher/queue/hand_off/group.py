"""A member of a queue's consumer group: its assigned partitions, and the records that it reads.

1. Partitions are assigned and revoked only during `poll`, never during a transaction. Each change raises `epoch` and
   discards the polled records.
2. `metadata` is read once, when partitions are assigned. After the next rebalance the broker refuses offsets sent with
   it, even if the client has joined the new generation by then.
3. `begin` decides the starting offsets, not the client's `auto.offset.reset`.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from thresher.kafka.group.membership import is_member
from thresher.kafka.problem import BrokerLost, BrokerRefused, broker_problem
from thresher.kafka.record_headers import headers_of
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.unreadable_batch import unreadable_from
from thresher.queue.hand_off.first_offsets import Beginning
from thresher.queue.hand_off.polled_records import PolledRecords
from thresher.queue.hand_off.protocol import NoMember, Uncertain
from thresher.queue.metrics import Figures
from thresher.queue.problem import OffsetsLost
from thresher.queue.wire.marker import MessageId
from thresher.queue.wire.record import record_of

logger = logging.getLogger(__name__)

# Records read at once: records of other queues are skipped quickly.
_RECORDS = 1_000
# How long an error for a missing topic is tolerated: the client may not know a new topic yet.
_MISSING_SECONDS = 10.0

# How often an unreadable batch is reported.
_UNREADABLE_SECONDS = 60.0

# The group has assigned the partitions to another member, or has removed this one.
_NO_MEMBER = frozenset(
    {
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._ASSIGNMENT_LOST,
    }
)

# The group never accepts this member, however often it retries.
_JOIN_REFUSED = frozenset(
    {
        KafkaError.GROUP_MAX_SIZE_REACHED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_SESSION_TIMEOUT,
    }
)

Begin = Callable[[list[int], "GroupMember"], Beginning]


class GroupMember:
    """One membership, from joining to leaving. For one thread."""

    def __init__(
        self, queue: bytes, topic: str, client: Consumer, polled: PolledRecords, figures: Figures, begin: Begin
    ) -> None:
        self._queue, self._topic, self._client = queue, topic, client
        self._polled, self._figures, self._begin = polled, figures, begin
        self.epoch = 0
        self.metadata: bytes | None = None
        self._paused = False
        self.polled_at = 0.0
        self._missing_since: float | None = None
        # By partition: until when no batch that cannot be decompressed is reported again.
        self._told_until: dict[int, float] = {}
        client.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)

    def poll(self, seconds: float) -> None:
        """Wait up to `seconds` for records, and add them to the polled ones.

        Raises `BrokerLost`, `BrokerRefused` or `OffsetsLost`.
        """
        self.polled_at = time.monotonic()
        try:
            # `consume` waits for the full number of records; `poll` returns with the first one.
            first = self._client.poll(seconds)
            if first is None:
                return
            self._take(first)
            before = self.epoch
            more = self._client.consume(_RECORDS, 0.0)
            if self.epoch != before:
                # Some of these records may have been fetched before the rebalance, so they are read again. While the
                # member has no partitions, nothing is assigned: the client could take an empty assignment for the
                # application's own.
                if self.metadata is not None:
                    self._assign()
                return
            for each in more:
                self._take(each)
        except KafkaException as error:
            raise broker_problem(f"the messages of {self._topic} cannot be read", error.args[0]) from error

    def pause(self) -> None:
        """Stop fetching records. `poll` continues, so that the group keeps this member."""
        if not self._paused:
            self._paused = True
            self._client.pause(self._client.assignment())

    def resume(self) -> None:
        """Fetch records again."""
        if self._paused:
            self._paused = False
            self._client.resume(self._client.assignment())

    def commit(self, ends: Mapping[int, int]) -> NoMember | Uncertain | None:
        """Commit offsets without a transaction. Return None on success."""
        offsets = [TopicPartition(self._topic, partition, end) for partition, end in ends.items()]
        try:
            answered = self._client.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            return _refused(error.args[0])
        return next((_refused(each.error) for each in answered or () if each.error is not None), None)

    def close(self) -> None:
        """Leave the group."""
        self._client.close()

    def _on_assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        self.epoch += 1
        self._polled.forget()
        self._paused = False
        metadata: Any = client.consumer_group_metadata()
        if not is_member(metadata):
            raise BrokerLost(f"the group of {self._queue!r} has removed this member")
        self.metadata = metadata
        numbers = sorted(place.partition for place in partitions)
        if numbers:
            start = self._begin(numbers, self)
            for number in numbers:
                self._polled.give(number, start.offsets[number])
            self._figures.count("removed", start.removed)
        self._figures.count("rebalances")
        self._assign()

    def _on_revoke(self, client: Consumer, _: list[TopicPartition]) -> None:
        self.epoch += 1
        self.metadata = None
        self._polled.forget()
        client.unassign()

    def _assign(self) -> None:
        """Continue to read where the polled records end."""
        places = [
            TopicPartition(self._topic, each, self._polled.position(each)) for each in sorted(self._polled.partitions)
        ]
        self._client.assign(places)
        # The client keeps a partition paused that is revoked and assigned again.
        self._client.resume(places)
        self._paused = False

    def _take(self, message: Message) -> None:
        if (error := message.error()) is not None:
            self._take_error(error, message)
            return
        self._missing_since = None
        partition, offset = message.partition() or 0, message.offset() or 0
        if message.key() != self._queue:
            self._polled.skip(partition, offset)
            self._figures.count("skipped")
            return
        _, timestamp = message.timestamp()
        self._polled.add(record_of(MessageId(partition, offset), message.value(), headers_of(message), timestamp))

    def _take_error(self, error: KafkaError, message: Message) -> None:
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._out_of_range(message)
        elif (first := unreadable_from(message)) is not None:
            self._note_unreadable(message.partition() or 0, first, error)
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
            raise BrokerLost(
                f"the group of {self._queue!r} has removed this member: it did not poll within max.poll.interval.ms"
            )
        elif refusal_of(error) is Refusal.TOPIC:
            now = time.monotonic()
            self._missing_since = self._missing_since or now
            if now - self._missing_since > _MISSING_SECONDS:
                raise broker_problem(f"the topic {self._topic} cannot be read", error)
        elif error.code() in _JOIN_REFUSED:
            raise BrokerRefused(
                f"the group of queue {self._queue!r} does not take this consumer: {error.str()}; correct "
                "the properties of 'consumer', or stop the members that use the group with other properties"
            )
        elif refusal_of(error) is not Refusal.TRANSIENT:
            raise broker_problem(f"the messages of {self._topic} cannot be read", error)
        else:
            logger.warning("a consumer met an error", extra={"queue": repr(self._queue), "reason": error.str()})

    def _note_unreadable(self, partition: int, first: int, error: KafkaError) -> None:
        """Report a batch that the client cannot decompress. The partition waits: it may hold messages."""
        now = time.monotonic()
        self._figures.count("unreadable")
        if now < self._told_until.get(partition, 0.0):
            return
        self._told_until[partition] = now + _UNREADABLE_SECONDS
        logger.error(
            "a batch cannot be decompressed, and its partition waits: raise receive.message.max.bytes in 'consumer', "
            "or step over it with 'thresher queue step-over'",
            extra={
                "queue": repr(self._queue),
                "topic": self._topic,
                "partition": partition,
                "offset": first,
                "reason": error.str(),
            },
        )

    def _out_of_range(self, message: Message) -> None:
        """Continue at the log's first record if retention has removed the position.

        Raises `OffsetsLost` past the log's end.
        """
        partition = message.partition() or 0
        if partition not in self._polled.partitions:
            return
        bounds = self._client.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=10.0, cached=False)
        if bounds is None:
            raise BrokerLost(f"the broker did not return the offsets of {self._topic}/{partition} in time")
        position = self._polled.position(partition)
        if position > bounds[1]:
            raise OffsetsLost(
                f"the group of queue {self._queue!r} is at {position} in partition {partition} of {self._topic}, which "
                f"ends at {bounds[1]}: records were lost. Set the group's offset with kafka-consumer-groups "
                "--reset-offsets"
            )
        if position < bounds[0]:
            self._figures.count("removed", bounds[0] - position)
            self._polled.move(partition, bounds[0])
        self._assign()


def _refused(error: KafkaError) -> NoMember | Uncertain:
    return NoMember(error.str()) if error.code() in _NO_MEMBER else Uncertain(error.str())
