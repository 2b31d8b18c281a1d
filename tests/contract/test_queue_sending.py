"""The contract of sending, on Kafka and in memory."""

from concurrent.futures import Future
from typing import Any

import pytest

from tests.contract.queue_worlds import SOON_SECONDS, World, receive
from thresher.queue import MessageId, MessageInvalid, Queue, QueueClosed


def test_a_send_returns_the_id_that_the_message_has(queue: Queue) -> None:
    with queue.producer() as producer:
        ids = {producer.send(b"x") for _ in range(3)}
    with queue.consumer() as consumer:
        messages = receive(consumer, 3)
        for message in messages:
            message.ack()
    assert len(ids) == 3
    assert {message.id for message in messages} == ids


def test_an_asynchronous_send_has_a_future_and_a_callback(queue: Queue) -> None:
    called: list[Future[MessageId]] = []
    with queue.producer() as producer:
        sent = producer.send_async(b"x", {"a": b"b"}, called.append)
        sent_id = sent.result(SOON_SECONDS)
        assert producer.flush(SOON_SECONDS)
    assert called == [sent]
    with queue.consumer() as consumer:
        assert receive(consumer)[0].id == sent_id


def test_a_flush_waits_for_every_send(queue: Queue) -> None:
    with queue.producer() as producer:
        sent = [producer.send_async(b"x") for _ in range(200)]
        assert producer.flush()
        assert all(each.done() for each in sent)


def test_a_send_cannot_be_cancelled_and_harms_no_other(queue: Queue) -> None:
    with queue.producer() as producer:
        sent = producer.send_async(b"x")
        assert not sent.cancel()
        assert sent.result(SOON_SECONDS) != producer.send(b"y")
    with queue.consumer() as consumer:
        assert {message.payload for message in receive(consumer, 2)} == {b"x", b"y"}


def test_a_message_with_a_delay_comes_after_it(world: World, queue: Queue) -> None:
    with queue.producer() as producer:
        sent = producer.send(b"later", {"h": "v"}, delay=90.5)
        assert sent.partition == -1
        assert producer.send_async(b"sooner", delay=1).result(SOON_SECONDS) != sent
    world.require_delayed(queue, sent, 90.5)


def test_a_message_has_limits_of_its_own(world: World, queue: Queue) -> None:
    with queue.producer() as producer:
        sent = producer.send(b"x", max_deliveries=3, ttl=3_600)
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        consumer.leave()
        message.nack(sync=True)
    world.require_limits(queue, sent, max_deliveries=3, ttl=3_600)


@pytest.mark.parametrize(
    "limits",
    [
        {"delay": -1},
        {"delay": 43_201},
        {"delay": float("nan")},
        {"delay": "5"},
        {"delay": None},
        {"ttl": "x"},
        {"ttl": True},
        {"max_deliveries": 0},
        {"ttl": 0},
        {"ttl": -1},
    ],
)
def test_limits_out_of_range_are_refused_before_sending(queue: Queue, limits: dict[str, Any]) -> None:
    with queue.producer() as producer, pytest.raises(MessageInvalid):
        producer.send(b"x", **limits)


def test_a_closed_producer_takes_no_messages(queue: Queue) -> None:
    with queue.producer() as producer:
        producer.send_async(b"x")
    with pytest.raises(QueueClosed):
        producer.send_async(b"y")
    with pytest.raises(QueueClosed):
        producer.send(b"y")
    producer.close()
