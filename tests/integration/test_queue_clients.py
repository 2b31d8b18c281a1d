"""The configuration of the queues' Kafka clients, and its effect on a real broker."""

from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.contract.queue_worlds import SOON_SECONDS, receive
from tests.queue.topics import QueueTopics
from thresher.devstack.stack import Stack
from thresher.kafka.problem import BrokerLost
from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer
from thresher.queue import QueueService
from thresher.queue.clients import KafkaClients
from thresher.queue.hand_off.starting_offsets import StartingOffsets
from thresher.queue.queue import group_of
from thresher.queue.sending.shared_producer import SharedProducer

# An open transaction hides the later markers of all queues.
MOST_SECONDS = 5.0


@pytest.fixture
def topics(stack: Stack) -> QueueTopics:
    return QueueTopics(stack.kafka.bootstrap)


class Recorded(KafkaClients):
    """Kafka clients that record the timeouts of their transactional producers."""

    def __init__(self) -> None:
        self.timeouts: list[TransactionTimeouts] = []

    def transactional(
        self, transactional_id: str, properties: Mapping[str, Any], timeouts: TransactionTimeouts
    ) -> TransactionalProducer:
        self.timeouts.append(timeouts)
        return super().transactional(transactional_id, properties, timeouts)


def test_no_transaction_is_open_for_more_than_five_seconds(topics: QueueTopics) -> None:
    clients = Recorded()
    with QueueService(topics.config, clients=clients) as service, service.queue("q").consumer() as consumer:
        service.queue("q").producer().send(b"x")
        receive(consumer)[0].ack()
    assert {each.properties()["transaction.timeout.ms"] for each in clients.timeouts} == {MOST_SECONDS * 1000}


def test_a_message_of_an_aborted_transaction_is_not_received(topics: QueueTopics) -> None:
    aborting = Producer({**topics.eyes, "transactional.id": f"{topics.config.message_topic}-aborting"})
    aborting.init_transactions(SOON_SECONDS)
    aborting.begin_transaction()
    aborting.produce(topics.config.message_topic, b"aborted", b"q", partition=0)
    aborting.flush(SOON_SECONDS)
    aborting.abort_transaction(SOON_SECONDS)
    later = Producer({**topics.eyes, "enable.idempotence": True})
    later.produce(topics.config.message_topic, b"later", b"q", partition=0)
    later.flush(SOON_SECONDS)
    with QueueService(topics.config) as service, service.queue("q").consumer() as consumer:
        (message,) = receive(consumer)
        assert message.payload == b"later"
        message.ack(sync=True)
    assert list(topics.started(b"q")) == [message.id]


def test_an_uncommitted_first_offset_is_not_noted(topics: QueueTopics) -> None:
    def commit(_: Mapping[int, int]) -> None:
        raise BrokerLost("no answer")

    producer = SharedProducer("notes", lambda: Producer(dict(topics.eyes)))
    try:
        starting_offsets = StartingOffsets(b"q", group_of(b"q"), topics.config, producer)
        with pytest.raises(BrokerLost, match="no answer"):
            starting_offsets.begin([0, 1], commit)
    finally:
        producer.close(SOON_SECONDS)
    notes = topics.contents(topics.config.queues_topic)
    assert notes == []
