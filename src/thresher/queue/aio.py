"""Queues for asyncio: the same queues, by the same threads. Nothing that waits blocks the event loop.

1. `QueueService` is given a configuration, or a service: one on Kafka, or one in memory. A service that it was given
   stays open when it is closed; the consumers and producers that were made here are closed.
2. A `receive` that waits needs no thread: a consumer tells the loop whenever it may have more messages, and one of the
   coroutines that wait takes them.
3. Messages are taken in the last step of `receive`, so that a `receive` that is cancelled has taken none.
4. A send that is cancelled may have been sent. An ack that is cancelled was given: only its answer is not waited for.

All of it is for one event loop: the one that runs when it is made.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

from thresher.queue import consumer as blocking_consumer
from thresher.queue import message as blocking_message
from thresher.queue import producer as blocking_producer
from thresher.queue import queue as blocking_queue
from thresher.queue import service as blocking_service
from thresher.queue.configuration import QueueConfig
from thresher.queue.message import MessageId
from thresher.queue.problem import QueueClosed
from thresher.queue.producer import GivenHeaders
from thresher.queue.running import back_off, settling, stopping_by_signals

logger = logging.getLogger(__name__)

# Sends in flight, in number and in bytes. The client has room for more, so that a send never waits for it.
_MOST_SENDS, _MOST_BYTES = 10_000, 512_000_000

_T = TypeVar("_T")


class BlockingService(Protocol):
    """A service whose calls block: `thresher.queue.QueueService`, or `MemoryQueueService`."""

    config: QueueConfig

    def queue(self, given: str | bytes) -> blocking_queue.Queue:
        """Return a queue."""

    def close(self) -> None:
        """Close everything."""


class QueueService:
    """The queues of one pair of topics, for asyncio. An asynchronous context manager."""

    def __init__(self, given: QueueConfig | Mapping[str, Any] | BlockingService) -> None:
        """Raises `ConfigurationInvalid`; no server is asked."""
        self._owned = isinstance(given, QueueConfig | Mapping)
        self._service: BlockingService = (
            blocking_service.QueueService(given) if isinstance(given, QueueConfig | Mapping) else given
        )
        self.config = self._service.config
        most = max(1, min(_MOST_SENDS, _MOST_BYTES // self.config.max_message_bytes))
        self._room = asyncio.Semaphore(most)
        self._made: set[QueueProducer | QueueConsumer] = set()
        self._closed = False

    def queue(self, given: str | bytes) -> "Queue":
        """Return a queue by its id, text or bytes. It needs not be made, and costs nothing until it is used."""
        return Queue(self._service.queue(given), self)

    get_or_create_queue = queue

    def make_producer(self, queue: blocking_queue.Queue) -> "QueueProducer":
        """Return a producer for a queue."""
        self._require_open()
        producer = QueueProducer(queue.producer(), self._room, self._made.discard)
        self._made.add(producer)
        return producer

    def make_consumer(self, queue: blocking_queue.Queue) -> "QueueConsumer":
        """Return a consumer of a queue."""
        self._require_open()
        consumer = QueueConsumer(queue.consumer(), self._made.discard)
        self._made.add(consumer)
        return consumer

    async def close(self) -> None:
        """Close every consumer and producer that was made here, and the service unless it was given."""
        self._closed = True
        await asyncio.gather(*(each.close() for each in tuple(self._made)))
        if self._owned:
            await _in_thread(self._service.close)

    async def __aenter__(self) -> "QueueService":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _require_open(self) -> None:
        if self._closed:
            raise QueueClosed("the service was closed")


class Queue:
    """A queue. Equal ids are the same queue, whoever uses them."""

    def __init__(self, queue: blocking_queue.Queue, service: QueueService) -> None:
        self.id = queue.id
        self._queue, self._service = queue, service

    def producer(self) -> "QueueProducer":
        """Return a producer for this queue."""
        return self._service.make_producer(self._queue)

    def consumer(self) -> "QueueConsumer":
        """Return a consumer of this queue: it begins to receive at once."""
        return self._service.make_consumer(self._queue)

    def __repr__(self) -> str:
        return f"<Queue {self.id!r}>"


class QueueProducer:
    """Sends to one queue. An asynchronous context manager."""

    def __init__(
        self,
        producer: blocking_producer.QueueProducer,
        room: asyncio.Semaphore,
        forget: Callable[["QueueProducer"], None],
    ) -> None:
        self._producer, self._room, self._forget = producer, room, forget
        self._sending: set[asyncio.Task[MessageId]] = set()
        self._closed = False

    async def send(self, payload: bytes | str, headers: GivenHeaders | None = None) -> MessageId:
        """Send a message, and return its id once every replica has it.

        Raises `MessageInvalid` or `SendRefused` where it is not in the queue, and `SendUnknown` where that is
        not known.
        """
        return await self.send_async(payload, headers)

    def send_async(self, payload: bytes | str, headers: GivenHeaders | None = None) -> asyncio.Future[MessageId]:
        """Send a message without waiting; return a future of its id. Every error of `send` is the future's."""
        if self._closed:
            raise QueueClosed("the producer was closed")
        sending = asyncio.get_running_loop().create_task(self._send(payload, headers))
        # The loop itself does not keep its tasks.
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        return sending

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until every message was answered for, and return whether that is so. Errors are the futures'."""
        if not self._sending:
            return True
        _, left = await asyncio.wait(tuple(self._sending), timeout=timeout)
        return not left

    async def close(self) -> None:
        """Wait for what was sent, and take no more."""
        self._closed = True
        # The client answers for each of them, in `send-timeout` at the latest.
        await self.flush()
        await _in_thread(self._producer.close)
        self._forget(self)

    async def __aenter__(self) -> "QueueProducer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, payload: bytes | str, headers: GivenHeaders | None) -> MessageId:
        async with self._room:
            return await asyncio.wrap_future(self._producer.send_async(payload, headers))


class Message:
    """One delivery of one message: as `thresher.queue.Message`, with calls to be awaited."""

    __slots__ = (
        "_message", "delivery_count", "enqueued_at_ms", "headers", "id", "origin_id", "payload", "queue",
    )  # fmt: skip

    def __init__(self, message: blocking_message.Message) -> None:
        self._message = message
        self.queue, self.payload, self.headers = message.queue, message.payload, message.headers
        self.id, self.origin_id, self.delivery_count = message.id, message.origin_id, message.delivery_count
        self.enqueued_at_ms = message.enqueued_at_ms

    def __repr__(self) -> str:
        return repr(self._message)

    @property
    def enqueued_at(self) -> datetime:
        """When the message was first sent, by the clock of its sender or its broker."""
        return self._message.enqueued_at

    async def ack(self, *, sync: bool = False) -> None:
        """Say that the message was processed, in whatever order. With `sync`, wait for the broker.

        Raises `AlreadySettled`, or `QueueClosed` after the consumer was closed.
        """
        await _settle(self._message.ack, sync=sync)

    async def nack(self, delay: float = 0.0, *, sync: bool = False) -> None:
        """Give the message back: it is redelivered after `delay` seconds, and counts as delivered."""
        await _settle(partial(self._message.nack, delay), sync=sync)

    async def reject(self, reason: str, *, sync: bool = False) -> None:
        """Have the message become a dead letter, with this reason."""
        await _settle(partial(self._message.reject, reason), sync=sync)

    async def extend(self, seconds: float) -> None:
        """Put the redelivery off, to `seconds` from now at least."""
        self._message.extend(seconds)


Handler = Callable[[Message], Awaitable[object]]


class QueueConsumer:
    """Receives from one queue, beside any number of others. An asynchronous context manager and iterator."""

    def __init__(self, consumer: blocking_consumer.QueueConsumer, forget: Callable[["QueueConsumer"], None]) -> None:
        self._consumer, self._forget = consumer, forget
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        consumer.listen(self._hear)

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None if none came within `timeout` seconds; without one, wait for ever.

        Raises `QueueClosed` after `close`, also where it was waiting, or the error that ended the consumer.
        """
        messages = await self.receive_batch(1, timeout)
        return messages[0] if messages else None

    async def receive_batch(self, most: int, timeout: float | None = None) -> list[Message]:
        """Return up to `most` messages: wait for the first, as `receive` does, and take those that are there."""
        deadline = None if timeout is None else self._loop.time() + timeout
        # A loop over a full buffer would otherwise never let another coroutine run.
        await asyncio.sleep(0)
        while True:
            messages = self._take(most)
            left = None if deadline is None else deadline - self._loop.time()
            if messages or (left is not None and left <= 0):
                return messages
            await self._wait(left)

    def __aiter__(self) -> "QueueConsumer":
        return self

    async def __anext__(self) -> Message:
        while True:
            try:
                message = await self.receive()
            except QueueClosed:
                raise StopAsyncIteration from None
            if message is not None:
                return message

    async def run(self, handler: Handler, concurrency: int = 1) -> None:
        """Await a handler with each message, so many at a time, until SIGTERM, SIGINT or `close`; then close.

        Ack on return; on an exception nack, with a back-off that doubles with each delivery.
        """
        try:
            await _Running(self, handler, concurrency).run()
        finally:
            await self.close()

    async def flush(self, timeout: float = 30.0) -> bool:
        """Wait until the broker has answered for the acks, nacks and rejects given, and return whether it has."""
        return await _in_thread(partial(self._consumer.flush, timeout))

    async def leave(self) -> None:
        """Leave the group: nothing more is started. What was started can be received and settled until `close`."""
        await _in_thread(self._consumer.leave)

    async def close(self) -> None:
        """Leave the group, give back what was not settled, and wait for the broker's answers. Ends every `receive`."""
        await _in_thread(self._consumer.close)
        self._forget(self)

    async def __aenter__(self) -> "QueueConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def in_progress(self) -> int:
        """How many messages are started and not settled, those that wait to be received included."""
        return self._consumer.in_progress

    def _take(self, most: int) -> list[Message]:
        """Take what is there, and call the next coroutine that waits unless there was nothing."""
        try:
            messages = [Message(message) for message in self._consumer.receive_batch(most, 0)]
        except BaseException:
            # The others are to hear of it too.
            self._wake()
            raise
        if messages:
            self._wake()
        return messages

    async def _wait(self, seconds: float | None) -> None:
        """Wait to be called. Whoever was called looks whether there are messages, or calls the next one."""
        called = self._loop.create_future()
        self._waiting.append(called)
        try:
            await asyncio.wait((called,), timeout=seconds)
        except asyncio.CancelledError:
            if called.done():
                self._wake()
            raise
        finally:
            if not called.done():
                self._waiting.remove(called)

    def _wake(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)

    def _hear(self) -> None:
        # From any thread. A loop that is closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)


class _Running:
    """The coroutines of one `run`: as `thresher.queue.running`, which has threads."""

    def __init__(self, consumer: QueueConsumer, handler: Handler, concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is 1 or more, not {concurrency}")
        self._consumer, self._handler, self._concurrency = consumer, handler, concurrency
        # Those that have no message: they may be cancelled.
        self._idle: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._errors: list[Exception] = []

    async def run(self) -> None:
        """Handle messages until a signal or `close`. Raises the error that ended the consumer, if one did."""
        loop = asyncio.get_running_loop()
        with stopping_by_signals(lambda: loop.call_soon_threadsafe(self._stop)):
            await asyncio.gather(*(loop.create_task(self._work()) for _ in range(self._concurrency)))
        if self._errors:
            raise self._errors[0]

    def _stop(self) -> None:
        self._stopping.set()
        for task in self._idle:
            task.cancel()

    async def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                message = await self._next()
            except QueueClosed:
                return
            except asyncio.CancelledError:
                if self._stopping.is_set():
                    return
                raise
            except Exception as error:  # noqa: BLE001 - `run` raises it
                self._errors.append(error)
                self._stop()
                return
            if message is not None:
                await self._handle(message)

    async def _next(self) -> Message | None:
        task = _this_task()
        self._idle.add(task)
        try:
            return await self._consumer.receive()
        finally:
            self._idle.discard(task)

    async def _handle(self, message: Message) -> None:
        try:
            await self._handler(message)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _this_task().cancelling():
                # `run` is cancelled, not something that the handler waited for: closing gives the message back.
                raise
            delay = back_off(message.delivery_count)
            logger.exception(
                "a handler failed: its message is redelivered",
                extra={"message_id": str(message.id), "delivery_count": message.delivery_count, "delay": delay},
            )
            with settling():
                await message.nack(delay)
        else:
            with settling():
                await message.ack()


async def _settle(call: Callable[..., None], *, sync: bool) -> None:
    if sync:
        await _in_thread(partial(call, sync=True))
    else:
        call()


async def _in_thread(call: Callable[[], _T]) -> _T:
    """Return what a call returns that blocks. It is made to its end, also where its caller is cancelled."""
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, call))


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine
    return task
