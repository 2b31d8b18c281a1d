"""Receives the messages of a queue, for coroutines."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from functools import partial

from thresher.queue import consumer as blocking_consumer
from thresher.queue.aio.blocking_call import begin, in_thread, result_of
from thresher.queue.aio.message import Message
from thresher.queue.aio.running import Handler, Running
from thresher.queue.problem import QueueClosed

# How long leaving and flushing wait at most, unless told otherwise: as consumers of threads do.
_STOP_SECONDS = 30.0


class QueueConsumer:
    """Receives from one queue, beside any number of others. An asynchronous context manager and iterator."""

    def __init__(self, consumer: blocking_consumer.QueueConsumer, forget: Callable[["QueueConsumer"], None]) -> None:
        # The same one, for threads.
        self.blocking = consumer
        self._forget = forget
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

        Ack on return; on an exception nack, with a back-off that doubles with each delivery. A second signal waits for
        no handler: they are cancelled, their messages are given back, and this raises `SystemExit`. A third signal,
        for a handler that blocks the event loop, does what it did before the run.
        """
        try:
            await Running(self, handler, concurrency, leave=partial(self.blocking.leave, 0.0)).run()
        finally:
            await self.close()

    async def flush(self, timeout: float = _STOP_SECONDS) -> bool:
        """Wait until the broker has answered for the acks, nacks and rejects given, and return whether it has."""
        return await in_thread(partial(self.blocking.flush, timeout))

    async def leave(self, timeout: float = _STOP_SECONDS) -> None:
        """Leave the group: nothing more is started. What was started can be received and settled until `close`.

        It waits so many seconds for that, and goes on in the background.
        """
        await in_thread(partial(self.blocking.leave, timeout))

    async def close(self) -> None:
        """Leave the group, give back what was not settled, and wait for the broker's answers. Ends every `receive`."""
        await result_of(begin(self.blocking.close, outlives_loop=True))
        self._forget(self)

    async def __aenter__(self) -> "QueueConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def in_progress(self) -> int:
        """How many messages are started and not settled, those that wait to be received included."""
        return self.blocking.in_progress

    def _take(self, most: int) -> list[Message]:
        """Take what is there, and call the next coroutine that waits unless there was nothing."""
        try:
            messages = [Message(message) for message in self.blocking.receive_batch(most, 0)]
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
