"""The contract of runs with handlers, on Kafka and in memory."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.queue_worlds import SOON_SECONDS, World, send
from tests.processes import eventually
from thresher.queue import Message, Queue, QueueClosed


def test_run_acks_on_return_and_gives_back_on_an_exception(world: World, queue: Queue) -> None:
    good, bad, own = send(queue, b"good", b"bad", b"own")
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        if message.delivery_count == 1:
            handled.append(message.payload)
        if message.payload == b"own":
            message.reject("by the handler")
        if message.payload == b"bad":
            raise RuntimeError("as the test wants it")

    with ThreadPoolExecutor(1) as pool, queue.consumer() as consumer:
        running = pool.submit(consumer.run, handle, 2)
        # The back-off is a second: no consumer gets the nacked message within this test.
        eventually(lambda: len(handled) == 3 and consumer.in_progress == 0, SOON_SECONDS)
        consumer.close()
        running.result(SOON_SECONDS)
    assert sorted(handled) == [b"bad", b"good", b"own"]
    world.require_redelivery(queue, bad, delay=1.0)
    world.require_ended(queue, good)
    world.require_dead(queue, own, "by the handler")


def test_run_calls_handlers_at_the_same_time(queue: Queue) -> None:
    together = threading.Barrier(3)
    met: list[int] = []
    send(queue, b"1", b"2", b"3")
    with ThreadPoolExecutor(1) as pool, queue.consumer() as consumer:
        running = pool.submit(consumer.run, lambda _: met.append(together.wait(SOON_SECONDS)), concurrency=3)
        eventually(lambda: len(met) == 3, SOON_SECONDS)
        consumer.close()
        running.result(SOON_SECONDS)
    assert sorted(met) == [0, 1, 2]


def test_run_ends_by_sigterm_when_its_handler_has_returned(world: World, queue: Queue) -> None:
    (sent,) = send(queue, b"x")
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with queue.consumer() as consumer:
            consumer.run(lambda _: signal.raise_signal(signal.SIGTERM))
            with pytest.raises(QueueClosed):
                consumer.receive()
        assert heard == []
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    world.require_ended(queue, sent)


def test_run_needs_one_thread_at_least(queue: Queue) -> None:
    for concurrency in (0, -1):
        with queue.consumer() as consumer, pytest.raises(ValueError, match="concurrency"):
            consumer.run(lambda _: None, concurrency)
