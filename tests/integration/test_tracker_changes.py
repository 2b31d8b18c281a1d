"""A tracker whose topics and shards change while messages are in progress, and whose records expire."""

import random
import time
from collections import Counter

import pytest
from confluent_kafka import TopicPartition

from tests.processes import eventually
from tests.queue.topics import QueueTopics
from tests.tracker.tracked import (
    PATIENCE_SECONDS,
    dead_letters,
    end,
    ended_by,
    figure,
    keep_alive,
    redelivered,
    start,
    tracked,
    write,
)
from thresher.devstack.stack import Stack
from thresher.kafka.group.offsets import group_offsets
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.partitioners import murmur2_partition
from thresher.queue import Message, QueueConsumer, QueueService, TopicsUnsuitable
from thresher.queue.wire.marker import MarkerType
from thresher.spark.session.session import Session
from thresher.tracker.configuration import tracker_configured
from thresher.tracker.workload import TrackerWorkload

PARTITIONS, MARKER_PARTITIONS = 6, 2


@pytest.fixture
def topics(stack: Stack, spark: Session) -> QueueTopics:
    return QueueTopics(stack.kafka.bootstrap, partitions=PARTITIONS, marker_partitions=MARKER_PARTITIONS)


def remove_before(topics: QueueTopics, topic: str, offsets: dict[int, int]) -> None:
    """Delete records before these offsets, as retention does."""
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    for future in topics.admin.client.delete_records(places).values():
        future.result(30)


def tracked_to(topics: QueueTopics) -> dict[int, int]:
    """Return the tracker's committed offsets."""
    topic = topics.config.marker_topic
    found = group_offsets(topics.eyes, f"{topic}.tracker", topic, range(MARKER_PARTITIONS))
    return {partition: each.offset for partition, each in found.items()}


class Applications:
    """A consumer for each queue, which stays open."""

    def __init__(self, service: QueueService) -> None:
        self._service = service
        self._consumers: dict[str, QueueConsumer] = {}

    def receive(self, queue: str, payload: bytes) -> Message:
        """Return the only message of a queue."""
        if queue not in self._consumers:
            self._consumers[queue] = self._service.queue(queue).consumer()
        (message,) = self._consumers[queue].receive_batch(1, PATIENCE_SECONDS)
        assert message.payload == payload
        return message


def test_many_queues_share_few_marker_partitions(topics: QueueTopics) -> None:
    queues = [f"q{number}" for number in range(20)]
    with tracked(topics, shards=2) as tracker, QueueService(topics.config) as service:
        for queue in queues:
            for number in range(6):
                service.queue(queue).producer().send(b"%d" % number)
        consumers = {queue: service.queue(queue).consumer() for queue in queues}
        processed: Counter[tuple[str, bytes]] = Counter()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(processed) < 6 * len(queues) and time.monotonic() < deadline:
            for queue, consumer in consumers.items():
                for message in consumer.receive_batch(10, 0.02):
                    # Each message comes twice: the first delivery is nacked.
                    if message.delivery_count == 1:
                        message.nack()
                    else:
                        processed[queue, message.payload] += 1
                        message.ack()
        assert set(processed.values()) == {1}
        assert len(processed) == 6 * len(queues)
        eventually(lambda: figure(tracker, "ended") == 6 * len(queues), PATIENCE_SECONDS)
    placed = topics.markers()
    starts = {(each.marker.key, each.partition) for each in placed if each.marker.type is MarkerType.START}
    assert {partition for _, partition in starts} == set(range(MARKER_PARTITIONS))
    assert len(starts) == len(queues), "a queue's markers are in one partition"


def test_a_message_in_progress_survives_marker_retention(topics: QueueTopics) -> None:
    partition = murmur2_partition(b"orders", MARKER_PARTITIONS)
    topics.configure(topics.config.marker_topic, retention_ms="2000")
    with tracked(topics) as tracker:
        write(topics, *(start(number, 15_000) for number in (1, 2, 3)))
        begun = tracked_to(topics)[partition]
        for _ in range(3):
            # As the messages' consumers do.
            write(topics, *(keep_alive(number, 15_000) for number in (1, 2, 3)))
            before = tracked_to(topics)[partition]
            # The Starts are written again after half of the retention, and the committed offset follows.
            eventually(lambda: tracked_to(topics)[partition] > before, PATIENCE_SECONDS)  # noqa: B023
            remove_before(topics, topics.config.marker_topic, tracked_to(topics))
        eventually(lambda: figure(tracker, "rewritten") >= 6, PATIENCE_SECONDS)
    assert tracked_to(topics)[partition] > begun + 3, "the first Starts are gone"
    with tracked(topics) as tracker:
        assert figure(tracker, "in_progress") == 3
        write(topics, end(2))
        eventually(lambda: len(redelivered(topics)) == 2, 2 * PATIENCE_SECONDS)
        assert {record.payload for record in redelivered(topics)} == {b"1", b"3"}
        assert {record.delivery_count for record in redelivered(topics)} == {2}


def test_a_message_whose_record_expired_is_redelivered_whole(topics: QueueTopics) -> None:
    with tracked(topics), QueueService(topics.config) as service:
        payload = random.Random(3).randbytes(10_000)
        service.queue("orders").producer().send(payload, {"h": "v"})
        applications = Applications(service)
        message = applications.receive("orders", payload)
        ends = partition_ends(topics.admin.client, topics.config.message_topic, range(PARTITIONS))
        remove_before(topics, topics.config.message_topic, {partition: end.high for partition, end in ends.items()})
        message.nack()
        again = applications.receive("orders", payload)
        assert (again.headers, again.delivery_count, again.origin_id) == ((("h", b"v"),), 2, message.id)
        again.ack(sync=True)


def test_partitions_and_shards_change_while_messages_are_in_progress(topics: QueueTopics) -> None:
    queues = {f"q{number}": b"%d" % number for number in range(8)}
    with QueueService(topics.config) as service:
        applications = Applications(service)
        for queue, payload in queues.items():
            service.queue(queue).producer().send(payload)
        with tracked(topics, shards=1):
            messages = {queue: applications.receive(queue, payload) for queue, payload in queues.items()}
            topics.add_partitions(topics.config.marker_topic, 5)
        with tracked(topics, shards=3) as tracker:
            assert figure(tracker, "in_progress") == len(queues)
            for number, message in enumerate(messages.values()):
                message.nack() if number % 2 else message.ack()
            wanted = {payload for number, payload in enumerate(queues.values()) if number % 2}
            eventually(lambda: figure(tracker, "redelivered") == len(wanted), PATIENCE_SECONDS)
            for queue, payload in queues.items():
                if payload in wanted:
                    applications.receive(queue, payload).ack(sync=True)
            eventually(lambda: figure(tracker, "in_progress") == 0, PATIENCE_SECONDS)


def test_many_messages_are_redelivered_in_small_batches(topics: QueueTopics) -> None:
    topics.configure(topics.config.message_topic, max_message_bytes="20000")
    content = random.Random(9)
    payloads = {content.randbytes(9_000) for _ in range(60)}
    write(topics, *(start(number, 200, value=payload) for number, payload in enumerate(payloads)))
    with tracked(topics):
        eventually(lambda: len(redelivered(topics)) >= len(payloads), PATIENCE_SECONDS)
        assert {record.payload for record in redelivered(topics)} == payloads
        assert dead_letters(topics.config) == []


def test_a_topic_changed_under_a_leader_ends_the_tracker(topics: QueueTopics) -> None:
    given = topics.config.model_dump(by_alias=True, exclude_unset=True)
    term = TrackerWorkload(tracker_configured(given).settings).take_over("term", lambda: True)
    assert term is not None
    with term.watch() as looks:
        for look in looks:
            look.run()
        topics.configure(topics.config.marker_topic, cleanup_policy="compact")

        def refused() -> bool:
            try:
                for look in looks:
                    look.run()
            except TopicsUnsuitable:
                return True
            return False

        eventually(refused, PATIENCE_SECONDS)


def test_a_foreign_topic_is_refused_before_it_is_claimed(topics: QueueTopics) -> None:
    write(topics, *(b'{"order": %d}' % number for number in range(20)))
    error = ended_by(topics)
    assert isinstance(error, TopicsUnsuitable)
    assert error.exit_code == 4
    assert "holds records that are not markers" in str(error)
    assert tracked_to(topics) == {}


def test_a_claimed_marker_topic_survives_foreign_records(topics: QueueTopics) -> None:
    with tracked(topics):
        pass
    write(topics, *(b'{"order": %d}' % number for number in range(20)), start(1, 200))
    with tracked(topics) as tracker:
        eventually(lambda: len(redelivered(topics)) == 1, PATIENCE_SECONDS)
        assert figure(tracker, "malformed") == 20
