"""Records that any producer may send, honest or not: none of them ends a consumer or a tracker, and none is lost."""

import random
import time
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.processes import eventually
from tests.queue.topics import QueueTopics
from tests.tracker.tracked import committed, dead_letters, figure, keep_alive, redelivered, start, tracked, write
from thresher.devstack.stack import Stack
from thresher.kafka.partition_ends import OpenTransactions
from thresher.kafka.problem import BrokerRefused
from thresher.queue import QueueService
from thresher.queue.configuration import configured
from thresher.queue.hand_off.stepping_over import step_over, stuck_queues
from thresher.queue.inspection import peek
from thresher.queue.wire.marker import MessageId
from thresher.spark.session.session import Session
from thresher.tracker.dead import ChangeRefused, drop, replay

PATIENCE_SECONDS = 90.0
# zstd finds the repetition, and lz4, whose window has 64 KB, does not: 2 MB in 100 KB of zstd, and 2 MB of lz4.
FAR_REPEATED = random.Random(36).randbytes(100_000) * 20


@pytest.fixture
def topics(stack: Stack, spark: Session) -> QueueTopics:
    return QueueTopics(stack.kafka.bootstrap, partitions=2, marker_partitions=1)


def send(
    topics: QueueTopics, records: list[tuple[bytes | None, list[tuple[Any, Any]]]], *, codec: str, partition: int = -1
) -> None:
    """Send records to the queue `orders`, as another program would."""
    producer = Producer(
        {**topics.eyes, "compression.type": codec, "compression.level": 9, "message.max.bytes": 1_000_000_000}
    )
    refused: list[Any] = []
    for payload, headers in records:
        producer.produce(
            topics.config.message_topic,
            payload,
            b"orders",
            partition,
            headers=headers,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
        producer.flush(60)
    assert refused == []


@pytest.mark.parametrize("handoff", ["exactly-once", "at-least-once"])
def test_no_record_ends_a_consumer_or_is_lost(topics: QueueTopics, handoff: str) -> None:
    large: list[tuple[bytes | None, list[tuple[Any, Any]]]] = [
        (FAR_REPEATED, [("kept", b"v")]),
        (b"in its headers", [("large", FAR_REPEATED)]),
        (bytes(50_000_000), [("kept", None)]),
        (b"many", [("", None)] * 99_999),
    ]
    send(topics, large, codec="zstd")
    send(topics, [(bytes(30_000_000), [])], codec="gzip")
    send(topics, [(None, []), (b"odd", [("thresher-origin-id", b"99999999999-1"), ("a", b"\xff")])], codec="none")
    keys = {**topics.config.model_dump(by_alias=True), "handoff": handoff}
    with QueueService(keys) as service:
        queue = service.queue("orders")
        for number in range(20):
            queue.producer().send(b"good %d" % number)
        with queue.consumer() as consumer:
            payloads: set[bytes] = set()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while len(payloads) < 22 and time.monotonic() < deadline:
                for message in consumer.receive_batch(50, 1.0):
                    payloads.add(message.payload)
                    message.ack()
            assert payloads == {b"", b"odd", *(b"good %d" % number for number in range(20))}
    letters = {letter.record.payload[:10]: letter for letter in dead_letters(topics.config)}
    assert len(letters) == 4
    far, headed, zeros = letters[FAR_REPEATED[:10]], letters[b"in its hea"], letters[bytes(10)]
    assert (far.record.payload, far.record.headers, far.incomplete) == (FAR_REPEATED, (("kept", b"v"),), None)
    assert (headed.record.headers, headed.incomplete) == ((("large", FAR_REPEATED),), None)
    assert f"max-message-bytes is {topics.config.max_message_bytes:,}" in far.reason
    assert zeros.incomplete is not None
    with pytest.raises(ChangeRefused, match="nothing was changed: message"):
        replay(topics.config, lambda _: True)
    assert drop(topics.config, lambda head: head.letter.incomplete is not None) == 2
    # A whole letter is replayed once the limits are raised, and its parts are removed with it.
    raised = str(4_000_000)
    for topic in (topics.config.message_topic, topics.config.marker_topic, topics.config.dead_topic):
        topics.configure(topic, max_message_bytes=raised)
    assert replay(topics.config, lambda head: head.letter.key == far.key) == 1
    with QueueService({**keys, "max-message-bytes": 3_000_000}) as service:
        (message,) = service.queue("orders").consumer().receive_batch(1, PATIENCE_SECONDS)
        assert (message.payload, message.headers) == (FAR_REPEATED, (("kept", b"v"),))
        message.ack()
    drop(topics.config, lambda _: True)
    last = {record.key: record.value for record in committed(topics, topics.config.dead_topic)}
    assert set(last.values()) == {None}


def test_no_marker_ends_a_tracker_or_loses_a_message(topics: QueueTopics) -> None:
    # A producer that compresses better than the tracker has sent these.
    write(
        topics,
        b"garbage",
        bytes(120_000_000),
        start(1, 300, value=FAR_REPEATED),
        start(2, 300, queue=b"q" * 500_000),
        start(3, 60_000),
        keep_alive(3, 0, reject_reason="x" * 1_000_000),
        keep_alive(3, 0, reject_reason="wrong"),
        start(4, 300, headers=(("nul\0", b"v"), ("", None))),
        start(5, 300, delivery_count=2**32 - 1, enqueued_at_ms=-(2**63), ttl_ms=2**63, first_started_ms=-(2**63)),
        start(6, 300, origin_id=MessageId(-7, -7)),
        compression="zstd",
    )
    with tracked(topics) as tracker:
        write(topics, start(7, 300))
        eventually(lambda: len(dead_letters(topics.config)) == 3, PATIENCE_SECONDS)
        eventually(lambda: {b"4", b"7"} <= {each.payload for each in redelivered(topics)}, PATIENCE_SECONDS)
        assert figure(tracker, "malformed") == 5
    letters = {letter.record.origin_id.offset: letter for letter in dead_letters(topics.config)}
    assert (letters[1].record.payload, letters[1].incomplete) == (FAR_REPEATED, None)
    assert "the queue's topic refuses the message" in letters[1].reason
    assert letters[3].reason == "wrong"
    assert "ttl" in letters[5].reason


def test_an_open_transaction_that_hides_messages_is_reported(
    topics: QueueTopics, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    soon = partial(OpenTransactions, every_ms=200, hidden_seconds=1.0)
    monkeypatch.setattr("thresher.queue.service.OpenTransactions", soon)
    stranger = Producer({**topics.eyes, "transactional.id": f"stranger of {topics.config.message_topic}"})
    stranger.init_transactions(30.0)
    with QueueService(topics.config) as service:
        queue = service.queue("orders")
        with queue.consumer() as consumer:
            stranger.begin_transaction()
            for partition in range(2):
                stranger.produce(topics.config.message_topic, b"", b"of nobody", partition)
            stranger.flush(30)
            queue.producer().send(b"hidden")
            eventually(lambda: "records wait behind an open transaction" in caplog.text, PATIENCE_SECONDS)
            assert consumer.receive_batch(1, 0.1) == []
            (hidden,) = [each.value for each in service.metrics() if each.family.name.endswith("hidden_partitions")]
            assert isinstance(hidden, float)
            assert hidden >= 1
            stranger.abort_transaction(30.0)
            (message,) = consumer.receive_batch(1, PATIENCE_SECONDS)
            message.ack()


def test_a_batch_that_cannot_be_read_waits_until_it_is_stepped_over(
    topics: QueueTopics, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {**topics.config.model_dump(by_alias=True), "consumer": {"receive.message.max.bytes": 10_000_000}}
    keys["consumer"] |= {"fetch.max.bytes": 1_100_000}
    with QueueService(keys) as service:
        queue = service.queue("orders")
        queue.producer().send(b"before")
        with queue.consumer() as consumer:
            (message,) = consumer.receive_batch(1, PATIENCE_SECONDS)
            message.ack()
            # A producer may send many: one command steps over all that follow each other.
            for partition in [0, 1, 0, 0]:
                send(topics, [(bytes(20_000_000), [])], codec="zstd", partition=partition)
            for number in range(4):
                queue.producer().send(b"after %d" % number)
            eventually(lambda: told(caplog).keys() == {0, 1}, PATIENCE_SECONDS)
    configured_keys = configured(keys)
    # What waits behind the batches is shown already, and each batch is told once.
    left_out: list[str] = []
    shown = peek(configured_keys, b"orders", 10, last=True, handed_off=False, told=left_out.append)
    assert {each.record.payload for each in shown} == {b"after %d" % number for number in range(4)}
    assert len(left_out) == 4, left_out
    assert "cannot be decompressed, and are left out" in left_out[0]
    found = list(stuck_queues(configured_keys))
    assert {(each.queue, each.partition) for each in found} == {(b"orders", 0), (b"orders", 1)}
    assert told(caplog) == {each.partition: each.batch.first for each in found}
    for each in found:
        step_over(configured_keys, each)
    assert list(stuck_queues(configured_keys)) == []
    with QueueService(keys) as service, service.queue("orders").consumer() as consumer:
        payloads: set[bytes] = set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(payloads) < 4 and time.monotonic() < deadline:
            payloads |= {message.payload for message in consumer.receive_batch(10, 1.0)}
    assert payloads == {b"after %d" % number for number in range(4)}
    # The operator has agreed late: meanwhile the queue has been moved, and its messages are not started again.
    with pytest.raises(BrokerRefused, match="does not stand before the batch any more"):
        step_over(configured_keys, found[0])


def test_a_start_that_cannot_be_written_again_does_not_hold_the_tracker(topics: QueueTopics) -> None:
    topics.configure(topics.config.marker_topic, retention_ms="4000")
    write(topics, start(1, 600_000, value=FAR_REPEATED), start(2, 600_000), compression="zstd")
    with tracked(topics) as tracker:
        eventually(lambda: len(dead_letters(topics.config)) == 1, PATIENCE_SECONDS)
        eventually(lambda: figure(tracker, "rewritten") >= 1, PATIENCE_SECONDS)
    (letter,) = dead_letters(topics.config)
    assert (letter.record.payload, letter.incomplete) == (FAR_REPEATED, None)
    assert "its Start cannot be written again" in letter.reason


def told(caplog: pytest.LogCaptureFixture) -> dict[int, int]:
    """Return the first offsets of the batches that were reported, by partition."""
    return {
        vars(record)["partition"]: vars(record)["offset"]
        for record in caplog.records
        if "a batch cannot be decompressed" in record.getMessage()
    }
