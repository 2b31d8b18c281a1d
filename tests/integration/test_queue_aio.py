"""Queues for asyncio, over memory and over Kafka."""

import asyncio
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import pytest

from tests.queue.topics import QueueTopics
from thresher.core.errors import ThresherError
from thresher.devstack.stack import Stack
from thresher.queue import AlreadySettled, MessageId, MessageInvalid, OffsetsLost, QueueClosed, aio
from thresher.queue import Message as BlockingMessage
from thresher.queue.memory import MemoryQueueService
from thresher.queue.message import Settlement

SOON_SECONDS = 30.0


def coroutine(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        async def bounded() -> None:
            await asyncio.wait_for(test(**fixtures), 2 * SOON_SECONDS)

        asyncio.run(bounded())

    return run


@asynccontextmanager
async def consuming(**keys: Any) -> AsyncIterator[tuple[MemoryQueueService, aio.QueueProducer, aio.QueueConsumer]]:
    with MemoryQueueService(keys) as memory:
        async with aio.QueueService(memory) as service:
            queue = service.queue("orders")
            async with queue.producer() as producer, queue.consumer() as consumer:
                yield memory, producer, consumer


async def turns(count: int) -> None:
    """Let the loop turn so many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


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
    # Those of the loop's own pool stay.
    ours = [each for each in set(threading.enumerate()) - before if each.name.startswith("thresher")]
    assert ours == []


@coroutine
async def test_receives_that_wait_have_no_threads() -> None:
    async with consuming() as (_, producer, consumer):
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(300)]
        await turns(3)
        # What another test left behind may end meanwhile: only what begins counts.
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
    # However far the message has come when the first is cancelled.
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
async def test_a_receive_waits_no_longer_than_it_is_told() -> None:
    async with consuming() as (_, producer, consumer):
        assert await consumer.receive(0) is None
        assert await consumer.receive(0.01) is None
        assert await consumer.receive_batch(5, 0.01) == []
        with pytest.raises(ValueError, match="at least one"):
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
    """Progress whose broker answers when it is told to."""

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
        # As a hand-off on Kafka does.
        consumer._consumer._buffer.put([delivery(offset, Blocking()) for offset in range(3)])
        messages = await asyncio.gather(*waiting)
    assert {message.id.offset for message in messages if message is not None} == {0, 1, 2}


@coroutine
async def test_a_synchronous_ack_waits_and_the_loop_goes_on() -> None:
    progress = Blocking()
    message = aio.Message(delivery(1, progress))
    acked, cancelled = asyncio.create_task(message.ack(sync=True)), asyncio.create_task(message.ack(sync=True))
    await turns(3)
    assert not acked.done()
    # An ack was given, though nobody waits for it any more.
    cancelled.cancel()
    progress.answer.set()
    await acked
    await until(lambda: len(progress.settled) == 2)


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
async def test_more_sends_than_there_is_room_for_wait_their_turn() -> None:
    # Five messages of this size would fill the client's queue.
    async with consuming(max_message_bytes=100_000_000) as (_, producer, consumer):
        sent = [producer.send_async(b"%d" % number) for number in range(50)]
        await producer.close()
        assert len({future.result() for future in sent}) == 50
        assert await consumer.receive(0) is not None


@coroutine
async def test_a_cancelled_send_harms_no_other() -> None:
    async with consuming() as (_, producer, _):
        sending = producer.send_async(b"x")
        await turns(1)
        sending.cancel()
        await producer.send(b"y")


@coroutine
async def test_a_service_that_was_given_stays_open() -> None:
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


# Running


@coroutine
async def test_run_acks_on_return_and_gives_back_on_an_exception() -> None:
    handled: list[bytes] = []

    async def handle(message: aio.Message) -> None:
        handled.append(message.payload)
        if message.payload == b"own":
            await message.reject("by the handler")
        if message.payload == b"bad":
            raise RuntimeError("as the test wants it")
        if message.payload == b"cancelled":
            # Something that it waits for, not the handler.
            raise asyncio.CancelledError

    async with consuming() as (memory, producer, consumer):
        for payload in (b"good", b"bad", b"own", b"cancelled", b"last"):
            await producer.send(payload)
        running = asyncio.create_task(consumer.run(handle))
        await until(lambda: len(handled) == 5 and consumer.in_progress == 0)
        await consumer.close()
        await running
        assert [letter.reason for letter in memory.dead_letters("orders")] == ["by the handler"]
        async with aio.QueueService(memory).queue("orders").consumer() as another:
            # By a real clock: the back-off is a second.
            again = [await another.receive(SOON_SECONDS), await another.receive(SOON_SECONDS)]
    assert {(each.payload, each.delivery_count) for each in again if each is not None} == {
        (b"bad", 2),
        (b"cancelled", 2),
    }


@coroutine
async def test_run_awaits_handlers_at_the_same_time() -> None:
    met: list[bytes] = []
    together = asyncio.Event()

    async def handle(message: aio.Message) -> None:
        met.append(message.payload)
        if len(met) == 4:
            together.set()
        await together.wait()

    async with consuming() as (_, producer, consumer):
        running = asyncio.create_task(consumer.run(handle, concurrency=4))
        for number in range(4):
            await producer.send(b"%d" % number)
        await until(lambda: together.is_set() and consumer.in_progress == 0)
        await consumer.close()
        await running
        with pytest.raises(ValueError, match="concurrency"):
            await consumer.run(handle, concurrency=0)


@coroutine
async def test_run_ends_by_sigterm_when_its_handlers_have_returned() -> None:
    handling, finish = asyncio.Event(), asyncio.Event()

    async def handle(message: aio.Message) -> None:
        handling.set()
        await finish.wait()

    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        async with consuming() as (memory, producer, consumer):
            await producer.send(b"x")
            # One of them has a message, the other two wait.
            running = asyncio.create_task(consumer.run(handle, concurrency=3))
            await handling.wait()
            signal.raise_signal(signal.SIGTERM)
            await turns(5)
            assert not running.done()
            finish.set()
            await running
            with memory.queue("orders").consumer() as another:
                assert another.receive(0) is None
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


@coroutine
async def test_a_cancelled_run_gives_back_what_it_has() -> None:
    handling = asyncio.Event()

    async def handle(message: aio.Message) -> None:
        handling.set()
        await asyncio.Event().wait()

    async with consuming() as (memory, producer, consumer):
        await producer.send(b"x")
        running = asyncio.create_task(consumer.run(handle, concurrency=2))
        await handling.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with memory.queue("orders").consumer() as another:
            again = another.receive(0)
    assert again is not None
    assert again.delivery_count == 2


@coroutine
async def test_the_error_that_ends_a_consumer_ends_its_run() -> None:
    error: ThresherError = OffsetsLost("the group has no offsets")
    done: list[bytes] = []

    async def handle(message: aio.Message) -> None:
        consumer._consumer._buffer.fail(error)
        await turns(20)
        done.append(message.payload)

    async with consuming() as (_, producer, consumer):
        await producer.send(b"x")
        with pytest.raises(OffsetsLost):
            await consumer.run(handle, concurrency=3)
    assert done == [b"x"]
