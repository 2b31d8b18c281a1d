"""Queues for asyncio, over memory and over Kafka."""

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from tests.queue.event_loop import SOON_SECONDS, consuming, coroutine, turns, until
from tests.queue.topics import QueueTopics
from thresher.devstack.stack import Stack
from thresher.queue import AlreadySettled, MessageId, MessageInvalid, OffsetsLost, QueueClosed, aio
from thresher.queue import Message as BlockingMessage
from thresher.queue.aio.producer import room_for_sends
from thresher.queue.memory import MemoryQueueService
from thresher.queue.message import Settlement


async def _round_trip(service: aio.QueueService) -> None:
    queue = service.queue("grüße")
    assert queue.id == service.get_or_create_queue("grüße".encode()).id
    async with queue.producer() as producer, queue.consumer() as consumer:
        sent = await producer.send("x", {"kind": "test"})
        futures = [producer.send_async(b"%d" % number) for number in range(20)]
        assert await producer.flush(SOON_SECONDS)
        message = await consumer.receive(SOON_SECONDS)
        assert message is not None
        others: list[aio.Message] = []
        while len(others) < 20:
            others += await consumer.receive_batch(20, SOON_SECONDS)
        await asyncio.gather(*(each.ack(sync=True) for each in (*others, message)))
        assert {each.id for each in (*others, message)} == {sent, *[future.result() for future in futures]}
        first = next(each for each in (*others, message) if each.id == sent)
        assert (first.payload, first.headers, first.queue) == (b"x", (("kind", b"test"),), queue.id)
        assert (first.origin_id, first.delivery_count) == (sent, 1)
        assert first.enqueued_at.timestamp() == pytest.approx(time.time(), abs=600)
        with pytest.raises(AlreadySettled):
            await message.nack()
        waiting = asyncio.create_task(consumer.receive())
        await producer.send(b"given back")
        given_back = await waiting
        assert given_back is not None
        await given_back.extend(60)
        assert consumer.in_progress == 1
        await given_back.nack(30, sync=True)
        assert await consumer.flush()
        assert consumer.in_progress == 0
    with pytest.raises(QueueClosed):
        await consumer.receive()


@coroutine
async def test_a_round_trip_in_memory() -> None:
    with MemoryQueueService() as memory:
        async with aio.QueueService(memory) as service:
            await _round_trip(service)


@coroutine
async def test_a_round_trip_on_kafka(stack: Stack) -> None:
    topics = QueueTopics(stack.kafka.bootstrap)
    before = set(threading.enumerate())
    async with aio.QueueService(topics.config) as service:
        await _round_trip(service)
    await until(lambda: not [each for each in set(threading.enumerate()) - before if each.name.startswith("thresher")])


@coroutine
async def test_waiting_receives_use_no_threads() -> None:
    async with consuming() as (_, producer, consumer):
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(300)]
        await turns(3)
        # Threads of other tests may end meanwhile, so only new threads count.
        before = set(threading.enumerate())
        for number in range(300):
            await producer.send(b"%d" % number)
        messages = await asyncio.gather(*waiting)
        assert not set(threading.enumerate()) - before
    payloads = [message.payload for message in messages if message is not None]
    assert sorted(payloads) == sorted(b"%d" % number for number in range(300))


@pytest.mark.parametrize("count", range(8))
@coroutine
async def test_a_cancelled_receive_leaves_its_message_to_another(count: int) -> None:
    # The first receive may be cancelled at any point of the message's way.
    async with consuming() as (memory, _, consumer):
        first, second = asyncio.create_task(consumer.receive()), asyncio.create_task(consumer.receive())
        await turns(3)
        memory.queue("orders").producer().send(b"x")
        await turns(count)
        first.cancel()
        done, _ = await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED, timeout=SOON_SECONDS)
        if first.cancelled() or first not in done:
            message = await second
        else:
            message = first.result()
            second.cancel()
        assert message is not None
        assert message.payload == b"x"


@coroutine
async def test_receives_cancelled_at_any_time_lose_nothing() -> None:
    chance = random.Random(7)
    seen: list[bytes] = []
    async with consuming() as (memory, _, consumer):

        def produce() -> None:
            with memory.queue("orders").producer() as producer:
                for number in range(400):
                    producer.send(b"%d" % number)
                    time.sleep(chance.random() / 2000)

        async def consume() -> None:
            while len(seen) < 400:
                receiving = asyncio.create_task(consumer.receive())
                await asyncio.sleep(chance.random() / 1000)
                receiving.cancel()
                await asyncio.wait((receiving,))
                if not receiving.cancelled() and (message := receiving.result()) is not None:
                    seen.append(message.payload)
                    await message.ack()

        await asyncio.gather(asyncio.to_thread(produce), *(consume() for _ in range(5)))
    assert sorted(seen) == sorted(b"%d" % number for number in range(400))


@coroutine
async def test_close_ends_receives_and_iterations_that_wait() -> None:
    async with consuming() as (_, producer, consumer):
        seen: list[bytes] = []

        async def iterate() -> None:
            async for message in consumer:
                seen.append(message.payload)
                await message.ack()

        iterating = [asyncio.create_task(iterate()) for _ in range(3)]
        await producer.send(b"x")
        await until(lambda: seen)
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(3)]
        await turns(3)
        await consumer.close()
        await asyncio.gather(*iterating)
        for each in waiting:
            with pytest.raises(QueueClosed):
                await each
        assert seen == [b"x"]


@coroutine
async def test_a_receive_waits_no_longer_than_its_timeout() -> None:
    async with consuming() as (_, producer, consumer):
        assert await consumer.receive(0) is None
        assert await consumer.receive(0.01) is None
        assert await consumer.receive_batch(5, 0.01) == []
        with pytest.raises(ValueError, match="at least 1"):
            await consumer.receive_batch(0)
        await producer.send(b"x")
        assert await consumer.receive(0) is not None


@coroutine
async def test_a_loop_over_messages_lets_other_coroutines_run() -> None:
    async with consuming(consumer_receive_buffer_capacity=500) as (_, producer, consumer):
        for number in range(8):
            await producer.send(b"%d" % number)
        ticks: list[int] = []

        async def tick() -> None:
            while True:
                ticks.append(len(ticks))
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        for _ in range(8):
            message = await consumer.receive(0)
            assert message is not None
            await message.ack()
        assert len(ticks) >= 8
        ticking.cancel()


class Blocking:
    """Messages in progress whose broker answers when the test says so."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.settled: list[Settlement] = []

    def settle(self, _: BlockingMessage, settlement: Settlement, *, sync: bool) -> None:
        assert sync
        assert self.answer.wait(SOON_SECONDS)
        self.settled.append(settlement)

    def extend(self, message: BlockingMessage, seconds: float) -> None:
        raise AssertionError(f"nobody extends {message} by {seconds} s")


def delivery(offset: int, progress: Blocking) -> BlockingMessage:
    place = MessageId(0, offset)
    return BlockingMessage(
        queue=b"orders",
        payload=b"x",
        headers=(),
        message_id=place,
        origin_id=place,
        delivery_count=1,
        enqueued_at_ms=0,
        progress=progress,
    )


@coroutine
async def test_messages_that_come_together_end_several_receives() -> None:
    async with consuming() as (_, _, consumer):
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(3)]
        await turns(3)
        # A hand-off on Kafka delivers several messages at once.
        consumer.blocking._buffer.put([delivery(offset, Blocking()) for offset in range(3)])
        messages = await asyncio.gather(*waiting)
    assert {message.id.offset for message in messages if message is not None} == {0, 1, 2}


@coroutine
async def test_a_synchronous_ack_waits_and_the_loop_goes_on() -> None:
    progress = Blocking()
    message = aio.Message(delivery(1, progress))
    acked, cancelled = asyncio.create_task(message.ack(sync=True)), asyncio.create_task(message.ack(sync=True))
    await turns(3)
    assert not acked.done()
    # The message is acked, although its caller was cancelled.
    cancelled.cancel()
    progress.answer.set()
    await acked
    await until(lambda: len(progress.settled) == 2)


@coroutine
async def test_synchronous_acks_do_not_wait_for_each_other() -> None:
    together = threading.Barrier(60)

    class Together(Blocking):
        def settle(self, _: BlockingMessage, settlement: Settlement, *, sync: bool) -> None:
            together.wait(SOON_SECONDS)
            super().settle(_, settlement, sync=sync)

    progress = Together()
    progress.answer.set()
    messages = [aio.Message(delivery(offset, progress)) for offset in range(60)]
    settle = (aio.Message.ack, partial(aio.Message.nack, delay=1), partial(aio.Message.reject, reason="x"))
    await asyncio.gather(*(settle[number % 3](message, sync=True) for number, message in enumerate(messages)))
    assert len(progress.settled) == 60


@coroutine
async def test_errors_of_a_send_are_those_of_its_future() -> None:
    async with consuming() as (_, producer, _):
        with pytest.raises(MessageInvalid):
            await producer.send(5)  # type: ignore[arg-type]
        refused = producer.send_async(bytes(2_000_000))
        assert await producer.flush()
        assert isinstance(refused.exception(), MessageInvalid)
    with pytest.raises(QueueClosed):
        await producer.send(b"x")


@coroutine
async def test_sends_beyond_the_client_queue_wait_their_turn() -> None:
    # Five messages of this size would fill the client's queue.
    async with consuming(max_message_bytes=100_000_000) as (_, producer, consumer):
        sent = [producer.send_async(b"%d" % number) for number in range(50)]
        await producer.close()
        assert len({future.result() for future in sent}) == 50
        assert await consumer.receive(0) is not None


@coroutine
async def test_a_cancelled_send_takes_room_until_its_answer() -> None:
    answers: list[Future[MessageId]] = []

    class Silent:
        """A producer whose futures the test resolves."""

        def send_async(self, *_: object, **__: object) -> Future[MessageId]:
            answers.append(Future())
            return answers[-1]

    silent: Any = Silent()
    producer = aio.QueueProducer(silent, asyncio.Semaphore(1), lambda _: None)
    for _ in range(2):
        sending = producer.send_async(b"x")
        await turns(3)
        sending.cancel()
        await asyncio.wait((sending,))
    waiting = producer.send_async(b"y")
    await turns(3)
    assert len(answers) == 1
    answers[0].set_result(MessageId(0, 1))
    await until(lambda: len(answers) == 2)
    answers[1].set_result(MessageId(0, 2))
    assert await waiting == MessageId(0, 2)


@pytest.mark.parametrize(
    ("keys", "room"),
    [
        ({}, 512),
        ({"max_message_bytes": 1_000}, 10_000),
        ({"max_message_bytes": 1_000, "kafka": {"queue.buffering.max.messages": "500"}}, 250),
        ({"max_message_bytes": 1_000, "producer": {"queue.buffering.max.messages": 0}}, 10_000),
        ({"max_message_bytes": 1_000, "producer": {"queue.buffering.max.kbytes": 100}}, 51),
        ({"max_message_bytes": 100_000_000, "producer": {"queue.buffering.max.kbytes": 100}}, 1),
    ],
)
def test_sends_fill_half_of_the_client_queue(keys: dict[str, Any], room: int) -> None:
    assert room_for_sends(MemoryQueueService(keys).config) == room


@coroutine
async def test_a_cancelled_send_cancels_no_other() -> None:
    async with consuming() as (_, producer, _):
        sending = producer.send_async(b"x")
        await turns(1)
        sending.cancel()
        await producer.send(b"y")


@coroutine
async def test_a_service_given_by_the_caller_stays_open() -> None:
    with MemoryQueueService() as memory:
        async with aio.QueueService(memory) as service:
            producer, consumer = service.queue("orders").producer(), service.queue("orders").consumer()
            await producer.send(b"x")
        with pytest.raises(QueueClosed):
            await consumer.receive()
        with pytest.raises(QueueClosed):
            service.queue("orders").consumer()
        with memory.queue("orders").consumer() as blocking:
            assert blocking.receive(0) is not None


# Closing


@asynccontextmanager
async def busy_pool() -> AsyncIterator[None]:
    """Fill the event loop's thread pool with the application's own work."""
    done = threading.Event()
    pool = ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(pool)
    working = loop.run_in_executor(None, done.wait)
    try:
        yield
    finally:
        done.set()
        await working


@coroutine
async def test_no_call_waits_for_the_applications_own_threads() -> None:
    with MemoryQueueService() as memory:
        async with busy_pool(), aio.QueueService(memory) as service:
            producer, consumer = service.queue("orders").producer(), service.queue("orders").consumer()
            await producer.send(b"x")
            message = await consumer.receive()
            assert message is not None
            await message.ack(sync=True)
            assert await consumer.flush()
            await consumer.leave()
            await consumer.close()
            await producer.close()


class Held:
    """Wraps a call: it waits for the test's permission, and then makes the original call."""

    def __init__(self, call: Callable[[], None], error: Exception | None = None) -> None:
        self._call, self._error = call, error
        self.begun, self.go_on, self.done = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.go_on.wait(SOON_SECONDS)
        self._call()
        self.done.set()
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize("closed", ["service", "consumer", "producer"])
@coroutine
async def test_a_cancelled_close_closes_nonetheless(closed: str) -> None:
    memory = MemoryQueueService()
    # The asyncio service owns its blocking service, as one made from a configuration does.
    service = aio.QueueService(memory, owned=True)
    queue = service.queue("orders")
    producer, consumer = queue.producer(), queue.consumer()
    first: Any = producer.blocking if closed == "producer" else consumer.blocking
    first.close = held = Held(first.close)
    made: dict[str, Any] = {"service": service, "consumer": consumer, "producer": producer}
    closing = asyncio.create_task(made[closed].close())
    await until(held.begun.is_set)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    held.go_on.set()
    await until(held.done.is_set)
    if closed == "service":
        await until(lambda: memory.closed and producer.blocking.closed)
    else:
        await service.close()


@coroutine
async def test_a_close_cancelled_while_sends_wait_closes_nonetheless() -> None:
    memory = MemoryQueueService()
    service = aio.QueueService(memory, owned=True)
    producer = service.queue("orders").producer()
    unanswered: Future[MessageId] = Future()
    producer.blocking.send_async = lambda *_, **__: unanswered  # type: ignore[method-assign,assignment]
    sending = producer.send_async(b"x")
    for closing in (asyncio.create_task(producer.close()), asyncio.create_task(service.close())):
        await turns(3)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    await until(lambda: producer.blocking.closed and memory.closed)
    unanswered.set_result(MessageId(0, 0))
    await sending


@pytest.mark.parametrize("owned", [True, False])
@coroutine
async def test_a_close_that_fails_leaves_nothing_else_open(owned: bool) -> None:
    with MemoryQueueService() as memory:
        service = aio.QueueService(memory, owned=owned)
        producer = service.queue("orders").producer()
        consumers = [service.queue("orders").consumer() for _ in range(3)]
        for consumer in consumers:
            failing: Any = consumer.blocking
            failing.close = held = Held(failing.close, OffsetsLost("as the test wants it"))
            held.go_on.set()
        with pytest.raises(OffsetsLost):
            await service.close()
        assert all(consumer.blocking.closed for consumer in consumers)
        assert producer.blocking.closed
        assert memory.closed is owned


@coroutine
async def test_a_failed_call_without_a_waiter_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with consuming() as (_, _, consumer):
        failing: Any = consumer.blocking
        sound, failing.close = failing.close, Held(failing.close, OffsetsLost("as the test wants it"))
        closing = asyncio.create_task(consumer.close())
        await until(failing.close.begun.is_set)
        closing.cancel()
        await asyncio.wait((closing,))
        failing.close.go_on.set()
        await until(lambda: "nobody waits for" in caplog.text)
        failing.close = sound
