"""Async handlers: how they run, and what ends them. `test_queue_running` sends signals to whole programs."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.queue.application_signals import hearing
from tests.queue.event_loop import SOON_SECONDS, consuming, coroutine, turns, until
from thresher.core.errors import ThresherError
from thresher.queue import Message as BlockingMessage
from thresher.queue import OffsetsLost, aio
from thresher.queue.memory import MemoryQueueService


@pytest.fixture(autouse=True)
def heard() -> Iterator[list[int]]:
    """Return the list of signals that reach the application's own signal handlers."""
    with hearing() as heard:
        yield heard


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
            # As from a cancelled awaitable: the handler itself is not cancelled.
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
            # The clock is real: the back-off takes a second.
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
async def test_no_more_handlers_run_than_the_limit() -> None:
    running: list[bytes] = []
    most, done = 0, 0

    async def handle(message: aio.Message) -> None:
        nonlocal most, done
        running.append(message.payload)
        most = max(most, len(running))
        # Time in which a surplus handler could start with a waiting message.
        await turns(20)
        running.remove(message.payload)
        done += 1

    async with consuming() as (_, producer, consumer):
        for number in range(8):
            await producer.send(b"%d" % number)
        ended = asyncio.create_task(consumer.run(handle, concurrency=3))
        await until(lambda: done == 8)
        await consumer.close()
        await ended
    assert most == 3


@pytest.mark.parametrize("exits", [SystemExit(3), KeyboardInterrupt()], ids=["exit", "interrupt"])
@coroutine
async def test_a_handler_that_exits_ends_the_run(exits: BaseException) -> None:
    others: list[bytes] = []

    async def handle(message: aio.Message) -> None:
        if message.payload == b"exits":
            raise exits
        await turns(20)
        others.append(message.payload)

    async with consuming() as (memory, producer, consumer):
        for payload in (b"other", b"exits"):
            await producer.send(payload)
        with pytest.raises(type(exits)) as raised:
            await consumer.run(handle, concurrency=2)
        assert raised.value is exits
        assert others == [b"other"]
        with memory.queue("orders").consumer() as another:
            again = another.receive(0)
    assert again is not None
    assert (again.payload, again.delivery_count) == (b"exits", 2)


@coroutine
async def test_failed_async_handlers_are_logged_like_threaded_ones(caplog: pytest.LogCaptureFixture) -> None:
    async def handle(_: aio.Message) -> None:
        raise RuntimeError("as the test wants it")

    def handle_in_thread(_: BlockingMessage) -> None:
        raise RuntimeError("as the test wants it")

    async with consuming() as (memory, producer, consumer):
        await producer.send(b"x")
        ended = asyncio.create_task(consumer.run(handle))
        await until(lambda: caplog.records and consumer.in_progress == 0)
        await consumer.close()
        await ended
        await producer.send(b"x")
        blocking = memory.queue("orders").consumer()
        threads = asyncio.create_task(asyncio.to_thread(blocking.run, handle_in_thread))
        await until(lambda: len(caplog.records) > 1 and blocking.in_progress == 0)
        blocking.close()
        await threads
    records: list[Any] = caplog.records
    assert len({(each.name, each.levelname, each.msg, each.delivery_count, each.delay) for each in records}) == 1
    assert len({each.message_id for each in records}) == len(records) == 2
    assert all(each.exc_info for each in records)


@coroutine
async def test_run_ends_by_sigterm_when_its_handlers_have_returned(heard: list[int]) -> None:
    handling, finish = asyncio.Event(), asyncio.Event()

    async def handle(message: aio.Message) -> None:
        handling.set()
        await finish.wait()

    async with consuming() as (memory, producer, consumer):
        await producer.send(b"x")
        # One handler has a message, the other two wait.
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


@pytest.mark.parametrize("closed", [None, 0, 1])
@coroutine
async def test_sigterm_stops_every_run_of_a_loop(heard: list[int], closed: int | None) -> None:
    # One of the runs may have ended before.
    async def handle(_: aio.Message) -> None:
        raise AssertionError("there is no message")

    with MemoryQueueService() as memory:
        async with aio.QueueService(memory) as service:
            consumers = [service.queue(name).consumer() for name in ("orders", "bills")]
            running = [asyncio.create_task(consumer.run(handle)) for consumer in consumers]
            await turns(3)
            if closed is not None:
                await consumers[closed].close()
                await running[closed]
            signal.raise_signal(signal.SIGTERM)
            await asyncio.gather(*running)
    assert heard == []
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


@coroutine
async def test_a_consumer_leaves_while_its_handlers_finish() -> None:
    handling, finish = asyncio.Event(), asyncio.Event()

    async def handle(message: aio.Message) -> None:
        handling.set()
        await finish.wait()

    async with consuming() as (memory, producer, consumer):
        await producer.send(b"x")
        running = asyncio.create_task(consumer.run(handle))
        await handling.wait()
        signal.raise_signal(signal.SIGTERM)
        await turns(5)
        with memory.queue("orders").consumer() as another:
            for _ in range(20):
                await producer.send(b"for another")
                message = another.receive(0)
                assert message is not None
                message.ack()
        finish.set()
        await running


@coroutine
async def test_a_second_signal_cancels_handlers_and_gives_back() -> None:
    cancelled: list[bytes] = []

    async def handle(message: aio.Message) -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(message.payload)
            raise

    async with consuming() as (memory, producer, consumer):
        await producer.send(b"x")
        with pytest.raises(SystemExit) as ended:
            await consumer.run(handle, concurrency=2)
        assert ended.value.code == 128 + signal.SIGINT
        assert cancelled == [b"x"]
        with memory.queue("orders").consumer() as another:
            again = another.receive(0)
    assert again is not None
    assert again.delivery_count == 2


@coroutine
async def test_a_handler_that_ignores_its_cancellation_is_not_awaited() -> None:
    finish = asyncio.Event()
    asyncio.get_running_loop().call_later(SOON_SECONDS, finish.set)

    async def handle(message: aio.Message) -> None:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        while not finish.is_set():
            with suppress(asyncio.CancelledError):
                await finish.wait()

    async with consuming() as (memory, producer, consumer):
        await producer.send(b"x")
        with pytest.raises(SystemExit):
            await consumer.run(handle)
        with memory.queue("orders").consumer() as another:
            assert another.receive(0) is not None
        finish.set()


@coroutine
async def test_a_cancelled_run_gives_its_messages_back() -> None:
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
        consumer.blocking._buffer.fail(error)
        await turns(20)
        done.append(message.payload)

    async with consuming() as (_, producer, consumer):
        await producer.send(b"x")
        with pytest.raises(OffsetsLost):
            await consumer.run(handle, concurrency=3)
    assert done == [b"x"]
