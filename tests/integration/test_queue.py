"""Queues on a real broker: first offsets, membership, bad messages, and queues that share topics."""

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.processes import eventually
from tests.queue.topics import QueueTopics
from thresher.core.errors import ThresherError
from thresher.devstack import ports
from thresher.devstack.stack import Stack
from thresher.kafka.committed_tail import CommittedTail
from thresher.observe.histogram import Histogram
from thresher.observe.prometheus import scrape
from thresher.queue import (
    MarkerUnknown,
    Message,
    MessageId,
    OffsetsLost,
    QueueConsumer,
    QueueService,
    SendUnknown,
    TopicsUnsuitable,
)
from thresher.queue.hand_off.first_offsets import Note
from thresher.queue.queue import group_of
from thresher.queue.wire.marker import MarkerType

PATIENCE_SECONDS = 60.0


@pytest.fixture
def topics(stack: Stack) -> QueueTopics:
    return QueueTopics(stack.kafka.bootstrap)


@pytest.fixture
def service(topics: QueueTopics) -> Iterator[QueueService]:
    with QueueService(topics.config) as made:
        yield made


def receive(consumer: QueueConsumer, count: int) -> list[Message]:
    """Receive exactly `count` messages."""
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count and time.monotonic() < deadline:
        found += consumer.receive_batch(count - len(found), 1.0)
    assert len(found) == count
    return found


def figures(service: QueueService) -> dict[str, float]:
    return {
        each.family.name.removeprefix("thresher_queue_"): each.value.count
        if isinstance(each.value, Histogram)
        else each.value
        for each in service.metrics()
    }


def test_markers_follow_a_message_from_start_to_end(service: QueueService, topics: QueueTopics) -> None:
    queue = service.queue("orders")
    sent = queue.producer().send(b"payload", {"kind": "new", "none": None})
    consumer = queue.consumer()
    (message,) = receive(consumer, 1)
    assert (message.id, message.origin_id, message.delivery_count) == (sent, sent, 1)
    message.extend(120)
    message.ack(sync=True)
    start, kept, end = (each.marker for each in topics.markers(b"orders"))
    assert (start.type, kept.type, end.type) == (MarkerType.START, MarkerType.KEEPALIVE, MarkerType.END)
    assert (start.key, start.value, start.redeliver_after_ms) == (b"orders", b"payload", 60_000)
    assert start.headers == (("kind", b"new"), ("none", None))
    assert start.enqueued_at_ms == message.enqueued_at_ms
    assert 119_000 < kept.redeliver_after_ms <= 120_000
    assert (end.message_id, end.value, end.key, end.redeliver_after_ms) == (sent, b"", b"", 0)


def test_a_slow_message_is_kept_alive(stack: Stack) -> None:
    topics = QueueTopics(stack.kafka.bootstrap, redelivery_timeout=1_000)
    with QueueService(topics.config) as service:
        queue = service.queue("slow")
        producer = queue.producer()
        producer.send(b"worked on")
        consumer = queue.consumer()
        (message,) = receive(consumer, 1)
        producer.send(b"waits in the buffer")
        eventually(lambda: len(topics.started(b"slow")) == 2, PATIENCE_SECONDS)

        def kept() -> set[MessageId]:
            kinds = [each.marker for each in topics.markers(b"slow") if each.marker.type is MarkerType.KEEPALIVE]
            return {marker.message_id for marker in kinds if marker.redeliver_after_ms == 1_000}

        eventually(lambda: len(kept()) == 2, PATIENCE_SECONDS)
        message.ack(sync=True)
        count = len(topics.markers(b"slow"))
        # The other message is still kept alive. No marker follows the End.
        eventually(lambda: len(topics.markers(b"slow")) > count + 1, PATIENCE_SECONDS)
        last = [each.marker.type for each in topics.markers(b"slow") if each.marker.message_id == message.id][-1]
        assert last is MarkerType.END


def test_other_queues_records_are_passed(topics: QueueTopics) -> None:
    with QueueService({**topics.config.model_dump(by_alias=True), "consumer-max-messages-per-commit": 10}) as service:
        consumer = service.queue("quiet").consumer()
        loud = service.queue("loud").producer()
        for number in range(200):
            loud.send_async(b"%d" % number)
        loud.flush()
        # At first up to ten records of each partition are not passed yet; after a few seconds all are.
        eventually(lambda: topics.offsets(b"quiet") == topics.ends(), PATIENCE_SECONDS)
        assert consumer.receive(0) is None
        assert figures(service)["records_skipped"] == 200
    assert topics.markers() == []


def test_a_group_begins_where_the_log_begins_and_notes_it(service: QueueService, topics: QueueTopics) -> None:
    queue = service.queue("late")
    sent = [queue.producer().send(b"%d" % number) for number in range(10)]
    with queue.consumer() as consumer:
        received = receive(consumer, 10)
        assert sorted(message.id for message in received) == sorted(sent)
        for message in received:
            message.ack()
    notes = _notes(topics)
    assert len(notes) == len(topics.ends())


def _notes(topics: QueueTopics) -> list[bytes]:
    found: list[bytes] = []
    facts = topics.admin.topic(topics.config.queues_topic)
    assert facts is not None
    for partition in range(facts.partitions):
        with CommittedTail(topics.config.queues_topic, partition, topics.eyes) as tail:
            found += tail.whole()
    return found


def test_lost_offsets_are_an_error_and_repeat_no_message(service: QueueService, topics: QueueTopics) -> None:
    queue = service.queue("lost")
    queue.producer().send(b"once")
    with queue.consumer() as consumer:
        receive(consumer, 1)[0].ack(sync=True)
    topics.admin.client.delete_consumer_groups([group_of(b"lost")])[group_of(b"lost")].result(30)
    with queue.consumer() as consumer, pytest.raises(OffsetsLost, match="--reset-offsets"):
        consumer.receive(PATIENCE_SECONDS)
    # Another queue without offsets is not affected.
    service.queue("found").producer().send(b"other")
    with service.queue("found").consumer() as consumer:
        assert receive(consumer, 1)[0].payload == b"other"
    assert len(topics.started(b"lost")) == 1


def test_a_note_missing_after_a_crash_is_written_later(service: QueueService, topics: QueueTopics) -> None:
    queue = service.queue("unnoted")
    queue.producer().send(b"once")
    with queue.consumer() as consumer:
        receive(consumer, 1)[0].ack(sync=True)
    # The deleted notes simulate a crash between the first commit and its note.
    for partition in range(2):
        topics.admin.client.delete_records([TopicPartition(topics.config.queues_topic, partition, -1)])
    noted = Note(queue=b"x", topic_id="x", partition=0, offset=0)
    assert noted.key == b"x/0"
    with queue.consumer() as consumer:
        queue.producer().send(b"twice")
        assert receive(consumer, 1)[0].payload == b"twice"
    topics.admin.client.delete_consumer_groups([group_of(b"unnoted")])[group_of(b"unnoted")].result(30)
    with queue.consumer() as consumer, pytest.raises(OffsetsLost):
        consumer.receive(PATIENCE_SECONDS)


def test_records_that_retention_removed_are_passed_and_counted(service: QueueService, topics: QueueTopics) -> None:
    queue = service.queue("old")
    with queue.consumer() as consumer:
        queue.producer().send(b"first")
        receive(consumer, 1)[0].ack(sync=True)
    for number in range(30):
        queue.producer().send(b"%d" % number)
    ends = topics.ends()
    removed = [TopicPartition(topics.config.message_topic, each, end) for each, end in ends.items()]
    for answer in topics.admin.client.delete_records(removed).values():
        answer.result(30)
    with queue.consumer() as consumer:
        queue.producer().send(b"new")
        assert receive(consumer, 1)[0].payload == b"new"
        assert figures(service)["records_removed"] == 30


def test_a_message_whose_start_is_refused_is_a_dead_letter(stack: Stack) -> None:
    name = uuid.uuid4().hex[:12]
    topics = QueueTopics(stack.kafka.bootstrap)
    # This marker topic accepts only records that are smaller than the messages.
    topics.admin.create_topic(f"{name}-small", partitions=2, config={"max.message.bytes": "20000"})
    topics.admin.create_topic(f"{name}-small.queues", config={"cleanup.policy": "compact"})
    keys = {**topics.config.model_dump(by_alias=True), "marker-topic": f"{name}-small"}
    with QueueService(keys) as service:
        producer = service.queue("jobs").producer()
        # Bytes that do not compress.
        large = bytes(range(256)) * 4 + uuid.uuid4().bytes * 4_000
        sent = [producer.send(b"%d" % number) for number in range(9)]
        too_large = producer.send(b"".join(uuid.uuid4().bytes for _ in range(4_000)), {"kept": large[:10]})
        sent += [producer.send(b"%d" % number) for number in range(9)]
        consumer = service.queue("jobs").consumer()
        assert {message.id for message in receive(consumer, 18)} == set(sent)
        eventually(lambda: figures(service)["messages_dead"] == 1, PATIENCE_SECONDS)
    found: list[bytes] = []
    for partition in range(3):
        with CommittedTail(topics.config.dead_topic, partition, topics.eyes) as tail:
            found += tail.whole()
    assert [len(each) for each in found] == [64_000]
    assert too_large not in topics.started(b"jobs")


def test_malformed_headers_stop_no_message(service: QueueService, topics: QueueTopics) -> None:
    producer = Producer(topics.eyes)
    malformed: list[list[tuple[str, str | bytes | None]]] = [
        [("thresher-delivery-count", b"many"), ("thresher-origin-id", b"\xff"), ("thresher-enqueued-at", b"-5")],
        [("thresher-delivery-count", None), ("", b"\xff\xfe")],
        [("thresher-origin-id", b"1-2-3")] * 3,
    ]
    for headers in malformed:
        producer.produce(topics.config.message_topic, b"good", b"orders", headers=headers)
    producer.produce(topics.config.message_topic, None, b"orders")
    producer.flush(30)
    received = receive(service.queue("orders").consumer(), 4)
    assert all(message.delivery_count == 1 and message.origin_id == message.id for message in received)
    assert sorted(message.payload for message in received) == [b"", b"good", b"good", b"good"]


def test_at_least_once_starts_and_then_commits(topics: QueueTopics) -> None:
    with QueueService({**topics.config.model_dump(by_alias=True), "handoff": "at-least-once"}) as service:
        queue = service.queue("simple")
        producer = queue.producer()
        sent = {producer.send(b"%d" % number) for number in range(50)}
        with queue.consumer() as consumer:
            for message in receive(consumer, 50):
                message.ack()
        assert topics.verdict(b"simple", sent) == []
        assert topics.ended(b"simple") == sent


def test_a_send_without_an_answer_is_unknown() -> None:
    nowhere = {"bootstrap-servers": f"127.0.0.1:{ports.free_port()}", "message-topic": "a", "marker-topic": "b"}
    with QueueService({**nowhere, "send-timeout": 500}) as service, pytest.raises(SendUnknown):
        service.queue("q").producer().send(b"x")


def test_missing_topics_are_named_with_the_remedy(stack: Stack) -> None:
    keys = {"bootstrap-servers": stack.kafka.bootstrap, "message-topic": uuid.uuid4().hex, "marker-topic": "none"}
    with (
        QueueService(keys) as service,
        service.queue("q").consumer() as consumer,
        pytest.raises(ThresherError, match=r"queue init|create the topic"),
    ):
        consumer.receive(PATIENCE_SECONDS)


def test_metrics_count_every_event(service: QueueService) -> None:
    queue = service.queue("counted")
    for number in range(6):
        queue.producer().send(b"%d" % number)
    consumer = queue.consumer()
    done, again, never, *_left = receive(consumer, 6)
    done.ack(sync=True)
    again.nack(5, sync=True)
    never.reject("no good", sync=True)
    now = figures(service)
    assert (now["messages_produced"], now["messages_consumed"], now["messages_in_progress"]) == (6, 6, 3)
    assert (now["messages_acked"], now["messages_given_back"], now["messages_rejected"]) == (1, 1, 1)
    assert (now["send_seconds"], now["receive_to_ack_seconds"]) == (6, 1)
    page = scrape(service.families(), service.metrics()).content
    assert isinstance(page, bytes)
    assert f'thresher_queue_messages_acked_total{{topic="{service.config.message_topic}"}} 1.0' in page.decode()
    consumer.close()
    assert figures(service)["messages_in_progress"] == 0


def test_a_full_buffer_pauses_and_keeps_the_membership(stack: Stack) -> None:
    quick: dict[str, Any] = {"session.timeout.ms": 6_000, "max.poll.interval.ms": 6_000, "heartbeat.interval.ms": 500}
    topics = QueueTopics(stack.kafka.bootstrap, consumer=quick, max_in_progress=5)
    with QueueService(topics.config) as service:
        producer = service.queue("full").producer()
        sent = {producer.send(b"%d" % number) for number in range(40)}
        consumer = service.queue("full").consumer()
        held = receive(consumer, 5)
        # Longer than `max.poll.interval.ms`.
        assert consumer.receive(9) is None
        assert len(topics.started(b"full")) == 5
        for message in held:
            message.ack()
        received = {message.id for message in held}
        while len(received) < 40:
            for message in receive(consumer, 1):
                received.add(message.id)
                message.ack()
        assert figures(service)["hand_offs_given_up"] == 0
        assert figures(service)["rebalances"] == 1
    assert topics.verdict(b"full", sent) == []


def test_a_slow_application_keeps_its_membership(stack: Stack) -> None:
    quick: dict[str, Any] = {"session.timeout.ms": 6_000, "max.poll.interval.ms": 6_000, "heartbeat.interval.ms": 500}
    topics = QueueTopics(stack.kafka.bootstrap, consumer=quick)
    with QueueService(topics.config) as service:
        producer = service.queue("slow").producer()
        for number in range(100):
            producer.send(b"%d" % number)
        consumer = service.queue("slow").consumer()
        # All messages were polled at once, and are started one by one, for longer than `max.poll.interval.ms`.
        for message in receive(consumer, 10):
            message.ack()
        until = time.monotonic() + 9
        while time.monotonic() < until:
            (message,) = receive(consumer, 1)
            message.ack()
            time.sleep(0.4)
        assert len(topics.started(b"slow")) < 100, "a slow consumer keeps messages from the others"
        assert figures(service)["rebalances"] == 1


def test_an_unconfirmed_ack_says_so(stack: Stack) -> None:
    topics = QueueTopics(stack.kafka.bootstrap, send_timeout=5_000)
    with QueueService(topics.config) as service:
        queue = service.queue("q")
        queue.producer().send(b"x")
        (message,) = receive(queue.consumer(), 1)
        topics.admin.delete_topics([topics.config.marker_topic])
        with pytest.raises((MarkerUnknown, TopicsUnsuitable)):
            message.ack(sync=True)


def test_a_consumer_that_cannot_join_its_group_says_so(topics: QueueTopics) -> None:
    short = {**topics.config.model_dump(by_alias=True), "consumer": {"session.timeout.ms": 1_000}}
    with (
        QueueService(short) as service,
        service.queue("q").consumer() as consumer,
        pytest.raises(ThresherError, match="does not take this consumer"),
    ):
        consumer.receive(PATIENCE_SECONDS)
