"""The contract of receiving, on Kafka and in memory."""

import itertools
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.queue_worlds import SOON_SECONDS, World, receive, send
from tests.processes import eventually
from thresher.queue import MessageId, Queue, QueueClosed, QueueConsumer


def test_a_receive_waits_no_longer_than_its_timeout(queue: Queue) -> None:
    with queue.consumer() as consumer:
        assert consumer.receive(0) is None
        assert consumer.receive(0.05) is None
        assert consumer.receive_batch(10, 0.05) == []


def test_a_batch_holds_available_messages_up_to_its_limit(queue: Queue) -> None:
    payloads = [b"%d" % number for number in range(5)]
    send(queue, *payloads)
    with queue.consumer() as consumer:
        eventually(lambda: consumer.in_progress == 5, SOON_SECONDS)
        first, second = consumer.receive_batch(3), consumer.receive_batch(100)
        assert (len(first), len(second)) == (3, 2)
        for most in (0, -1):
            with pytest.raises(ValueError, match="at least 1"):
                consumer.receive_batch(most)
        for message in (*first, *second):
            message.ack()
    assert sorted(message.payload for message in (*first, *second)) == payloads


def test_a_message_that_comes_later_ends_the_waiting(queue: Queue) -> None:
    with ThreadPoolExecutor(1) as pool, queue.consumer() as consumer:
        waiting = pool.submit(consumer.receive)
        assert consumer.receive(0.1) is None
        send(queue, b"x")
        message = waiting.result(SOON_SECONDS)
        assert message is not None
        message.ack()


def test_close_ends_receives_that_wait(queue: Queue) -> None:
    with ThreadPoolExecutor(2) as pool, queue.consumer() as consumer:
        waiting: list[Future[Any]] = [pool.submit(consumer.receive), pool.submit(consumer.receive_batch, 5)]
        # By now both calls wait.
        assert consumer.receive(0.2) is None
        consumer.close()
        for each in waiting:
            with pytest.raises(QueueClosed):
                each.result(SOON_SECONDS)


def test_iteration_yields_messages_and_ends_at_close(queue: Queue) -> None:
    send(queue, b"1", b"2", b"3")
    with queue.consumer() as consumer:
        seen = []
        for message in consumer:
            seen.append(message.payload)
            message.ack()
            if len(seen) == 3:
                consumer.close()
    assert sorted(seen) == [b"1", b"2", b"3"]


def test_a_listener_hears_of_messages_and_of_the_end(queue: Queue) -> None:
    heard = threading.Event()
    with queue.consumer() as consumer:
        consumer.listen(heard.set)
        send(queue, b"x")
        assert heard.wait(SOON_SECONDS)
        message = consumer.receive(0)
        assert message is not None
        message.ack()
        heard.clear()
    assert heard.is_set()


def test_no_more_than_max_in_progress_are_started(world: World, queue: Queue) -> None:
    with world.make_service(max_in_progress=3) as service:
        same = service.queue(queue.id)
        send(same, *(b"%d" % number for number in range(5)))
        with same.consumer() as consumer:
            messages = receive(consumer, 3)
            assert consumer.receive(0.2) is None
            assert consumer.in_progress == 3
            messages[1].ack()
            messages += receive(consumer)
            for message in (messages[0], *messages[2:]):
                message.ack()
            messages += receive(consumer)
            messages[-1].ack()
    assert {message.payload for message in messages} == {b"%d" % number for number in range(5)}


def test_consumers_of_one_queue_share_its_messages(queue: Queue) -> None:
    seen: list[list[bytes]] = [[], []]

    def consume(consumer: QueueConsumer, mine: list[bytes]) -> None:
        for message in consumer:
            mine.append(message.payload)
            message.ack()

    with (
        ThreadPoolExecutor(2) as pool,
        queue.producer() as producer,
        queue.consumer() as one,
        queue.consumer() as other,
    ):
        pool.submit(consume, one, seen[0])
        pool.submit(consume, other, seen[1])
        numbers = itertools.count()
        # Until both are members of the group, one of them may get all messages.
        deadline = time.monotonic() + SOON_SECONDS
        while not all(seen) and time.monotonic() < deadline:
            producer.send(b"%d" % next(numbers))
        for _ in range(100):
            producer.send_async(b"%d" % next(numbers))
        producer.flush()
        count = next(numbers)
        eventually(lambda: sum(map(len, seen)) >= count, SOON_SECONDS, lambda: f"{seen} of {count}")
        one.close()
        other.close()
    assert all(seen)
    assert sorted(seen[0] + seen[1]) == sorted(b"%d" % number for number in range(count))


def test_threads_share_a_producer_and_a_consumer(world: World, queue: Queue) -> None:
    seen: list[bytes] = []
    ids: list[MessageId] = []

    def produce(thread: int) -> None:
        ids.extend(producer.send(b"%d-%d" % (thread, number)) for number in range(25))

    def consume() -> None:
        while len(seen) < 100:
            if (message := consumer.receive(0.1)) is not None:
                message.ack()
                seen.append(message.payload)

    with ThreadPoolExecutor(8) as pool, queue.producer() as producer, queue.consumer() as consumer:
        work = [pool.submit(produce, thread) for thread in range(4)] + [pool.submit(consume) for _ in range(4)]
        for each in work:
            each.result(2 * SOON_SECONDS)
    assert sorted(seen) == sorted(b"%d-%d" % (thread, number) for thread in range(4) for number in range(25))
    world.require_ended(queue, ids[0])
    world.require_ended(queue, ids[-1])
