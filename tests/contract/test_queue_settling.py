"""The contract of ack, nack, reject and close, on Kafka and in memory.

`queue_worlds` checks the fate of a message.
"""

from collections.abc import Callable
from functools import partial

import pytest

from tests.contract.queue_worlds import SOON_SECONDS, World, receive, send
from tests.processes import eventually
from thresher.queue import AlreadySettled, Queue, QueueClosed


def test_acks_count_in_any_order(world: World, queue: Queue) -> None:
    sent = send(queue, *(b"%d" % number for number in range(4)))
    with queue.consumer() as consumer:
        messages = {message.id: message for message in receive(consumer, 4)}
        for message_id in (sent[2], sent[0], sent[3]):
            messages[message_id].ack(sync=message_id == sent[0])
        assert consumer.flush()
        assert consumer.in_progress == 1
    for message_id in (sent[2], sent[0], sent[3]):
        world.require_ended(queue, message_id)
    world.require_redelivery(queue, sent[1])


@pytest.mark.parametrize("delay", [0.0, 90.5])
def test_a_nack_gives_back_after_its_delay(world: World, queue: Queue, delay: float) -> None:
    (sent,) = send(queue, b"x")
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        # After `leave`, this consumer gets no message again: the redelivery goes to another consumer.
        consumer.leave()
        message.nack(delay, sync=True)
    world.require_redelivery(queue, sent, delay=delay)


def test_a_reject_makes_a_dead_letter_with_its_reason(world: World, queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    with queue.consumer() as consumer:
        receive(consumer)[0].reject("no such öder", sync=True)
    world.require_dead(queue, sent, "no such öder")


def test_an_extended_message_can_still_be_settled(world: World, queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        message.extend(3600)
        message.ack()
    world.require_extended(queue, sent, 3600)


def test_a_message_is_settled_once(world: World, queue: Queue) -> None:
    sent = send(queue, b"ack", b"nack", b"reject")
    with queue.consumer() as consumer:
        messages = {message.payload: message for message in receive(consumer, 3)}
        consumer.leave()
        messages[b"ack"].ack()
        messages[b"nack"].nack()
        messages[b"reject"].reject("bad")
        for message in messages.values():
            for again in (message.ack, message.nack, partial(message.reject, "x"), partial(message.extend, 1)):
                with pytest.raises(AlreadySettled):
                    again()
    world.require_ended(queue, sent[0])
    world.require_redelivery(queue, sent[1])
    world.require_dead(queue, sent[2], "bad")


def test_times_out_of_range_settle_nothing(queue: Queue) -> None:
    send(queue, b"x")
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        for seconds in (-1.0, 43_200.5, float("nan"), float("inf")):
            with pytest.raises(ValueError, match="seconds"):
                message.nack(seconds)
            with pytest.raises(ValueError, match="seconds"):
                message.extend(seconds)
        message.ack()


def test_after_close_nothing_can_be_settled_or_received(world: World, queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
    calls: list[Callable[[], object]] = [
        message.ack,
        message.nack,
        lambda: message.reject("x"),
        lambda: message.extend(1),
        consumer.receive,
        lambda: consumer.receive(0),
        lambda: consumer.receive_batch(5, 0),
    ]
    for call in calls:
        with pytest.raises(QueueClosed):
            call()
    assert list(consumer) == []
    consumer.close()
    world.require_redelivery(queue, sent)


def test_close_gives_back_unreceived_messages_without_counting_a_delivery(world: World, queue: Queue) -> None:
    sent = send(queue, b"1", b"2", b"3")
    with queue.consumer() as consumer:
        eventually(lambda: consumer.in_progress == 3, SOON_SECONDS)
        (received,) = receive(consumer)
    for message_id in sent:
        world.require_redelivery(queue, message_id, counted=message_id == received.id)


def test_a_consumer_that_left_still_delivers_started_messages(queue: Queue) -> None:
    send(queue, b"1", b"2")
    with queue.consumer() as consumer:
        eventually(lambda: consumer.in_progress == 2, SOON_SECONDS)
        consumer.leave()
        send(queue, b"3")
        for message in receive(consumer, 2):
            message.ack(sync=True)
        with pytest.raises(QueueClosed, match="left its group"):
            consumer.receive()
    with queue.consumer() as consumer:
        (message,) = receive(consumer)
        message.ack()
    assert message.payload == b"3"


def test_closing_a_service_closes_its_producers_and_consumers(world: World, queue: Queue) -> None:
    with world.make_service() as service:
        same = service.queue(queue.id)
        producer, consumer = same.producer(), same.consumer()
        producer.send(b"x")
        (message,) = receive(consumer)
    for call in (same.producer, same.consumer, consumer.receive, message.ack, lambda: producer.send(b"y")):
        with pytest.raises(QueueClosed):
            call()
    service.close()
