"""The tracker on a real broker and a real Spark: redelivery, dead letters, and refusals."""

import random
import threading
import time
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.processes import eventually
from tests.queue.topics import QueueTopics
from tests.tracker.tracked import (
    PATIENCE_SECONDS,
    committed,
    dead_letters,
    delayed,
    end,
    ended_by,
    figure,
    keep_alive,
    redelivered,
    start,
    tracked,
    tracker_of,
    write,
)
from thresher.core.errors import Superseded
from thresher.devstack.stack import Stack
from thresher.kafka.group.offsets import group_offsets
from thresher.kafka.partition_watch import PositionLost
from thresher.kafka.partitioners import murmur2_partition
from thresher.kafka.transactional import TransactionalProducer
from thresher.queue import Message, QueueService, TopicsUnsuitable
from thresher.queue.wire.marker import MarkerType, MessageId
from thresher.queue.wire.record import DEAD_REASON
from thresher.spark.session.session import Session
from thresher.tracker.dead import drop, replay
from thresher.tracker.room import MemoryFull


@pytest.fixture
def topics(stack: Stack, spark: Session) -> QueueTopics:
    return QueueTopics(stack.kafka.bootstrap)


def await_redelivered(topics: QueueTopics, count: int) -> dict[bytes, Any]:
    """Wait for exactly `count` redelivered messages, and return them by payload."""
    eventually(lambda: len(redelivered(topics)) >= count, PATIENCE_SECONDS, lambda: f"{redelivered(topics)}")
    found = redelivered(topics)
    assert len(found) == count
    return {record.payload: record for record in found}


def test_a_message_without_an_end_is_redelivered_once(topics: QueueTopics) -> None:
    write(
        topics,
        start(1, 300, headers=(("h", b"v"), ("none", None)), delivery_count=4, enqueued_at_ms=77),
        start(2, 300),
        start(3, 300),
        keep_alive(3, 60_000),
        start(4, 60_000),
        keep_alive(4, 0, released=True, undelivered=True),
        end(2),
    )
    with tracked(topics) as tracker:
        found = await_redelivered(topics, 2)
        one, four = found[b"1"], found[b"4"]
        assert (one.delivery_count, one.origin_id, one.enqueued_at_ms) == (5, MessageId(0, 1), 77)
        assert one.headers == (("h", b"v"), ("none", None))
        assert four.delivery_count == 1, "no application saw it"
        eventually(lambda: figure(tracker, "in_progress") == 1, PATIENCE_SECONDS)
        assert figure(tracker, "redelivered") == 2
    with tracked(topics):
        time.sleep(2)
        assert len(redelivered(topics)) == 2, "a restart redelivers nothing again"
    ends = [each.marker for each in topics.markers() if each.marker.type is MarkerType.END]
    assert {marker.message_id for marker in ends} >= {MessageId(0, 1), MessageId(0, 2), MessageId(0, 4)}


def test_only_nacked_delayed_and_rejected_messages_come_again(topics: QueueTopics) -> None:
    with tracked(topics), QueueService(topics.config) as service:
        queue = service.queue("orders")
        producer, consumer = queue.producer(), queue.consumer()
        began = time.monotonic()
        delayed = producer.send(b"later", {"h": "v"}, delay=2.0)
        for payload in (b"acked", b"nacked", b"rejected"):
            producer.send(payload)
        got: dict[bytes, Message] = {}
        while len(got) < 3:
            got |= {message.payload: message for message in consumer.receive_batch(10, 5.0)}
        assert set(got) == {b"acked", b"nacked", b"rejected"}
        got[b"acked"].ack()
        got[b"nacked"].nack(0.5)
        got[b"rejected"].reject("no such customer")
        again: dict[bytes, tuple[Message, float]] = {}
        while len(again) < 2:
            found = consumer.receive_batch(10, PATIENCE_SECONDS)
            assert found
            for message in found:
                again[message.payload] = (message, time.monotonic() - began)
                message.ack(sync=True)
        nacked, _ = again[b"nacked"]
        later, took = again[b"later"]
        assert (nacked.delivery_count, nacked.origin_id) == (2, got[b"nacked"].id)
        assert (later.delivery_count, later.origin_id, later.headers) == (1, delayed, (("h", b"v"),))
        assert delayed.partition == -1
        assert took >= 2.0, "never early"
        eventually(lambda: len(dead_letters(topics.config)) == 1, PATIENCE_SECONDS)
    (letter,) = dead_letters(topics.config)
    assert (letter.queue, letter.reason, letter.record.payload) == (b"orders", "no such customer", b"rejected")


def test_a_message_past_its_limit_is_a_dead_letter_once(topics: QueueTopics) -> None:
    with tracked(topics), QueueService(topics.config) as service:
        queue = service.queue("orders")
        consumer = queue.consumer()
        sent = queue.producer().send(b"poison", max_deliveries=3, ttl=600)
        for delivery in (1, 2, 3):
            (message,) = consumer.receive_batch(1, PATIENCE_SECONDS)
            assert message.delivery_count == delivery
            message.nack()
        eventually(lambda: len(dead_letters(topics.config)) == 1, PATIENCE_SECONDS)
        assert consumer.receive_batch(1, 1.0) == []
    (letter,) = dead_letters(topics.config)
    assert (letter.record.origin_id, letter.record.delivery_count) == (sent, 3)
    assert letter.reason == "it was delivered 3 times, and max-deliveries is 3"
    (record,) = [each for each in committed(topics, topics.config.dead_topic) if each.value is not None]
    assert record.key == b"%s@%d/orders" % (str(sent).encode(), letter.record.enqueued_at_ms)
    assert dict(record.headers)[DEAD_REASON] == letter.reason.encode()


def test_dead_letters_are_put_back_as_new_or_dropped(topics: QueueTopics) -> None:
    letters = [start(number, 60_000, value=b"%d" % number) for number in (1, 2, 3)]
    write(topics, *letters, *(keep_alive(number, 0, reject_reason="no") for number in (1, 2, 3)))
    with tracked(topics):
        eventually(lambda: len(dead_letters(topics.config)) == 3, PATIENCE_SECONDS)
    assert replay(topics.config, lambda head: head.id == MessageId(0, 1)) == 1
    assert drop(topics.config, lambda head: head.id == MessageId(0, 2)) == 1
    assert [letter.record.payload for letter in dead_letters(topics.config)] == [b"3"]
    assert replay(topics.config, lambda head: head.id == MessageId(0, 1)) == 0, "the letter was replayed"
    (record,) = redelivered(topics)
    assert (record.payload, record.delivery_count, record.origin_id) == (b"1", 1, MessageId(0, 1))


def test_a_replayed_letter_is_not_replayed_again(topics: QueueTopics) -> None:
    dead = topics.config.dead_topic
    write(topics, start(1, 60_000), keep_alive(1, 0, reject_reason="no"))
    with tracked(topics):
        eventually(lambda: len(dead_letters(topics.config)) == 1, PATIENCE_SECONDS)
    (place,) = {each.partition for each in committed(topics, dead)}
    hanging = TransactionalProducer("hanging", topics.eyes)
    hanging.init(dead)
    hanging.begin()
    hanging.produce([(0, (dead, b"", b"0-9@1/orders", place, 0, None))])
    assert hanging.flush() == []
    # As a tracker that is stopped in the middle of its transaction. A replay waits for its end.
    ending = threading.Timer(6.0, hanging.discard, kwargs={"abort": True})
    ending.start()
    assert replay(topics.config, lambda _: True) == 1
    assert replay(topics.config, lambda _: True) == 0
    ending.join()
    assert len(redelivered(topics)) == 1


def test_a_refused_message_becomes_a_dead_letter_alone(topics: QueueTopics) -> None:
    topics.configure(topics.config.message_topic, max_message_bytes="20000")
    # Incompressible bytes: the broker checks the compressed size.
    large = random.Random(5).randbytes(60_000)
    write(topics, *(start(number, 200) for number in range(5)), start(5, 200, value=large), start(6, 200))
    with tracked(topics):
        assert set(await_redelivered(topics, 6)) == {b"0", b"1", b"2", b"3", b"4", b"6"}
        eventually(lambda: len(dead_letters(topics.config)) == 1, PATIENCE_SECONDS)
    (letter,) = dead_letters(topics.config)
    assert letter.record.payload == large
    assert "the queue's topic refuses the message" in letter.reason


def test_malformed_markers_stop_no_redelivery(topics: QueueTopics) -> None:
    write(topics, b"no marker", start(1, 200), b"", end(99), keep_alive(98, 5))
    with tracked(topics) as tracker:
        await_redelivered(topics, 1)
        eventually(lambda: figure(tracker, "malformed") == 2, PATIENCE_SECONDS)
        assert (figure(tracker, "unknown_ends"), figure(tracker, "unknown_keep_alives")) == (1, 1)


def test_partitions_that_are_added_are_tracked(topics: QueueTopics) -> None:
    with tracked(topics, shards=2):
        topics.add_partitions(topics.config.marker_topic, 5)
        queues = {murmur2_partition(b"q%d" % number, 5): b"q%d" % number for number in range(50)}
        for partition, queue in sorted(queues.items()):
            write(topics, start(partition, 200, queue=queue), queue=queue)
        assert len(await_redelivered(topics, 5)) == 5


def test_the_newest_of_two_trackers_has_the_partitions(topics: QueueTopics) -> None:
    write(topics, start(1, 4_000))
    older = tracker_of(topics)
    older.start()
    eventually(lambda: figure(older, "tracking"), PATIENCE_SECONDS)
    with tracked(topics):
        # An idle tracker writes nothing: the older one learns of its successor with its next transaction.
        await_redelivered(topics, 1)
        write(topics, start(2, 200))
        await_redelivered(topics, 2)
        with pytest.raises(Superseded, match="another tracker has"):
            older.wait(PATIENCE_SECONDS)


def test_the_committed_offset_follows_messages_in_progress(topics: QueueTopics) -> None:
    config = topics.config
    partition = murmur2_partition(b"orders", 2)

    def offset() -> int:
        found = group_offsets(topics.eyes, f"{config.marker_topic}.tracker", config.marker_topic, [partition])
        return found[partition].offset if partition in found else -1

    with tracked(topics):
        write(topics, *(marker for number in range(50) for marker in (start(number, 60_000), end(number))))
        eventually(lambda: offset() >= 100, PATIENCE_SECONDS, lambda: f"{offset()}")
        before = offset()
        write(topics, start(100, 60_000), *(m for n in range(200, 220) for m in (start(n, 60_000), end(n))))
        time.sleep(3)
        assert before <= offset() <= before + 2, "a message in progress holds the offset back"
        write(topics, end(100))
        eventually(lambda: offset() >= before + 40, PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("which", "settings", "why"),
    [
        ("marker_topic", {"message_timestamp_type": "CreateTime"}, "set it to LogAppendTime"),
        ("marker_topic", {"cleanup_policy": "compact"}, "set it to delete"),
        ("marker_topic", {"retention_bytes": "1000000"}, "set it to -1"),
        ("dead_topic", {"cleanup_policy": "delete"}, "set it to compact"),
    ],
)
def test_topics_that_could_lose_messages_are_refused(
    topics: QueueTopics, which: str, settings: dict[str, str], why: str
) -> None:
    topic = getattr(topics.config, which)
    topics.configure(topic, **settings)
    error = ended_by(topics)
    assert isinstance(error, TopicsUnsuitable)
    assert error.exit_code == 4
    assert topic in str(error)
    assert why in str(error)


def test_a_missing_topic_is_named(topics: QueueTopics) -> None:
    for future in topics.admin.client.delete_topics([topics.config.dead_topic]).values():
        future.result(30)
    error = ended_by(topics)
    assert isinstance(error, TopicsUnsuitable)
    assert "make it with 'thresher queue init'" in str(error)


def test_lost_markers_end_the_tracker_unless_accepted(topics: QueueTopics) -> None:
    partition = murmur2_partition(b"orders", 2)
    write(topics, start(1, 3_600_000))
    with tracked(topics):
        write(topics, *(marker for number in range(10, 20) for marker in (start(number, 60_000), end(number))))
    place = TopicPartition(topics.config.marker_topic, partition, 15)
    for future in topics.admin.client.delete_records([place]).values():
        future.result(30)
    error = ended_by(topics)
    assert isinstance(error, PositionLost)
    assert "has lost 15 markers" in str(error)
    assert "accept-lost-markers" in str(error)
    with tracked(topics, accept_lost_markers=True):
        write(topics, start(2, 200))
        await_redelivered(topics, 1)


def test_starts_that_are_small_on_the_wire_do_not_fill_the_memory(topics: QueueTopics) -> None:
    """Of Starts that are never compressed, 360 MB would end a tracker with 256."""
    payload = bytes(60_000)
    write(topics, *(start(number, 3_600_000, value=payload) for number in range(6_000)), compression="zstd")
    with tracked(topics, memory_mb=256) as tracker:
        eventually(lambda: figure(tracker, "started") == 6_000, PATIENCE_SECONDS)
        write(topics, start(6_000, 100))
        await_redelivered(topics, 1)
        assert figure(tracker, "memory_bytes") < 225 << 20


def noise(number: int) -> bytes:
    return random.Random(number).randbytes(60_000)


def test_contents_that_memory_cannot_take_go_to_disk(topics: QueueTopics) -> None:
    """In memory, 240 MB of noise would end a tracker with 256."""
    first, last = range(3_700), range(3_700, 4_000)
    for begin in range(0, len(first), 500):
        some = first[begin : begin + 500]
        write(topics, *(start(number, 3_600_000, value=noise(number)) for number in some))
    write(topics, *(delayed(number, 3_000, value=noise(number)) for number in last))
    with tracked(topics, memory_mb=256) as tracker:
        eventually(lambda: figure(tracker, "started") == 4_000, PATIENCE_SECONDS)
        found = await_redelivered(topics, len(last))
        assert {number: found[noise(number)].delivery_count for number in last} == dict.fromkeys(last, 1)
        assert figure(tracker, "memory_bytes") < 200 << 20
        assert figure(tracker, "spilled_bytes") > 150 << 20
        nacked = range(0, 3_700, 37)
        write(topics, *(keep_alive(number, 0, released=True) for number in nacked))
        found = await_redelivered(topics, len(last) + len(nacked))
        assert {number: found[noise(number)].delivery_count for number in nacked} == dict.fromkeys(nacked, 2)
        write(topics, *(end(number) for number in first))
        eventually(lambda: figure(tracker, "in_progress") == 0, PATIENCE_SECONDS)
        eventually(lambda: figure(tracker, "spilled_bytes") == 0, PATIENCE_SECONDS)


def test_a_shard_with_full_memory_ends_the_tracker(topics: QueueTopics) -> None:
    # Each has a queue of its own, and a content that is too small for the disk.
    queues = (b"%d" % number + bytes(990) for number in range(60_000))
    write(topics, *(start(number, 3_600_000, queue=queue) for number, queue in enumerate(queues)))
    error = ended_by(topics, memory_mb=256)
    assert isinstance(error, MemoryFull)
    assert error.exit_code == 4
    assert "redelivery-tracker.memory_mb is 256: raise it" in str(error)
