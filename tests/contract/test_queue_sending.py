"""What queues promise a sender, on Kafka and in memory."""

from concurrent.futures import Future

import pytest

from tests.contract.queue_worlds import SOON_SECONDS, receive
from thresher.queue import MessageId, Queue, QueueClosed


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


def test_a_closed_producer_takes_no_messages(queue: Queue) -> None:
    with queue.producer() as producer:
        producer.send_async(b"x")
    with pytest.raises(QueueClosed):
        producer.send_async(b"y")
    with pytest.raises(QueueClosed):
        producer.send(b"y")
    producer.close()
