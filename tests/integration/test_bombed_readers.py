"""Batches that are small on the wire and huge in memory: a reader fetches few at once, and each of any size."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.peak_memory import peak_mb
from tests.queue.topics import QueueTopics
from thresher.capture.reader import TopicsReader
from thresher.devstack.stack import Stack
from thresher.kafka.assigned_reader import AssignedReader, ConsumerRecord
from thresher.kafka.committed_tail import CommittedTail
from thresher.kafka.fetch_sizes import FETCH_BYTES, bounded_fetches
from thresher.queue import QueueService
from thresher.queue.configuration import QueueConfig
from thresher.queue.topic_records import TopicRecords
from thresher.queue.wire.dead_letter import dead_records
from thresher.queue.wire.marker import MessageId
from thresher.queue.wire.record import Record
from thresher.testing import reading
from thresher.tracker.dead import dead_letters, replay

PATIENCE_SECONDS, PREFETCH_SECONDS = 90.0, 3.0
# Together 1.8 GB. With the client's own sizes, one answer holds all of them.
BOMBS, BOMB_BYTES = 120, 15_000_000
# An answer of our size holds about 350 MB, and two of them may overlap.
MOST_MB = 1_200
# Together 360 MB.
LETTERS, MOST_LETTERS_MB = 400, 300


@pytest.fixture(scope="module")
def bombed(stack: Stack) -> QueueConfig:
    """Return queues whose message topic has one partition: a message, and bombs behind it."""
    topics = QueueTopics(stack.kafka.bootstrap, partitions=1, marker_partitions=1)
    packing = Producer({**topics.eyes, "compression.type": "zstd", "compression.level": 9, "message.max.bytes": 10**9})
    for payload in (b"good", *[bytes(BOMB_BYTES)] * BOMBS):
        # Flushed singly, each is a batch of its own.
        packing.produce(topics.config.message_topic, payload, b"orders", 0)
        assert packing.flush(60) == 0
    return topics.config


def consumed(config: QueueConfig) -> None:
    with QueueService(config) as service:
        prefetched(config, service._group_client(b"orders"))


def peeked(config: QueueConfig) -> None:
    prefetched(config, TopicRecords(config, str).client)


def recovered(config: QueueConfig) -> None:
    with CommittedTail(config.message_topic, 0, config.clients) as tail:
        assert next(tail.whole()) == b"good"
        time.sleep(PREFETCH_SECONDS)


def verified(config: QueueConfig) -> None:
    prefetched(config, reading._consumer(config.bootstrap_servers, {}))


def prefetched(config: QueueConfig, consumer: Consumer) -> None:
    """Take the first record, and wait while the client fetches what follows."""
    consumer.assign([TopicPartition(config.message_topic, 0, 0)])
    (message,) = consumer.consume(1, PATIENCE_SECONDS)
    assert message.value() == b"good"
    time.sleep(PREFETCH_SECONDS)
    consumer.close()


def assigned(config: QueueConfig) -> None:
    with AssignedReader(config.message_topic, config.clients) as reader:
        assert any(isinstance(each, ConsumerRecord) for each in reader.poll(PATIENCE_SECONDS, at_most=1))
        time.sleep(PREFETCH_SECONDS)


def captured(config: QueueConfig) -> None:
    with TopicsReader([config.message_topic], config.clients) as reader:
        reader.assign((config.message_topic, 0), 0)
        assert reader.poll(PATIENCE_SECONDS, 1)
        time.sleep(PREFETCH_SECONDS)


@pytest.mark.parametrize("reader", [consumed, peeked, assigned, captured, recovered, verified])
def test_a_reader_prefetches_few_bombs(bombed: QueueConfig, reader: Callable[[QueueConfig], None]) -> None:
    assert peak_mb(reader, bombed) < MOST_MB


def test_dead_letters_are_listed_and_replayed_without_holding_all(stack: Stack) -> None:
    topics = QueueTopics(stack.kafka.bootstrap, partitions=2)
    config = topics.config
    producer = Producer({**topics.eyes, "compression.type": "lz4"})
    for number in range(LETTERS):
        place = MessageId(0, number)
        record = Record(
            message_id=place, payload=bytes(900_000), headers=(), delivery_count=2, origin_id=place, enqueued_at_ms=1
        )
        parts = 500_000 if number % 2 else None
        for topic, value, key, _, _, headers in dead_records(
            config.dead_topic, b"orders", record, "why", part_bytes=parts, partition_of=lambda _: 0
        ):
            producer.produce(topic, value, key, 0, headers=headers)
        assert producer.flush(60) == 0
    for used in (peak_mb(dead_letters, config), peak_mb(replay, config, _every)):
        assert used < MOST_LETTERS_MB
    assert dead_letters(config) == []
    assert sum(topics.ends().values()) >= LETTERS


def _every(_: object) -> bool:
    return True


def test_a_batch_larger_than_a_fetch_is_read(stack: Stack) -> None:
    keys: dict[str, Any] = {"max-message-bytes": 3_000_000}
    topics = QueueTopics(stack.kafka.bootstrap, partitions=1, **keys)
    large = bytes(range(256)) * 11_000
    assert len(large) > 80 * FETCH_BYTES
    with QueueService(topics.config) as service:
        queue = service.queue("orders")
        for payload in (b"before", large, b"after"):
            queue.producer().send(payload)
        with queue.consumer() as consumer:
            for payload in (b"before", large, b"after"):
                (message,) = consumer.receive_batch(1, PATIENCE_SECONDS)
                assert message.payload == payload
                message.ack()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"message.max.bytes": 5_000_000},
        {"fetch.message.max.bytes": "1048576"},
        {"max.partition.fetch.bytes": 200_000, "fetch.max.bytes": 100_000},
        {"fetch.max.bytes": 20_000},
        {"receive.message.max.bytes": 10_000_000},
    ],
)
def test_the_client_accepts_the_sizes_beside_those_given(given: dict[str, Any]) -> None:
    properties = bounded_fetches(given)
    Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", **properties}).close()
    assert {name: properties[name] for name in given if name != "message.max.bytes"} == {
        name: value for name, value in given.items() if name != "message.max.bytes"
    }
