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

# The default timeout of `leave` and `flush`: that of the blocking consumer.
_STOP_SECONDS = 30.0


class QueueConsumer:
    """Receives from one queue, which may have any number of consumers. An asynchronous context manager and iterator."""

    def __init__(self, consumer: blocking_consumer.QueueConsumer, forget: Callable[["QueueConsumer"], None]) -> None:
        # The blocking consumer that this one wraps.
        self.blocking = consumer
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[asyncio.Future[None]] = deque()
        consumer.listen(self._hear)

    async def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None if none came within `timeout` seconds. Without a timeout, wait indefinitely.

        Raises `QueueClosed` after `close`, even in a `receive` that was waiting, or the error that ended the consumer.
        """
        messages = await self.receive_batch(1, timeout)
        return messages[0] if messages else None

    async def receive_batch(self, most: int, timeout: float | None = None) -> list[Message]:
        """Return up to `most` messages: wait for the first as `receive` does, then add those that are already there."""
        deadline = None if timeout is None else self._loop.time() + timeout
        # Without this, a loop over a full buffer would never let another coroutine run.
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
        """Await a handler for each message, `concurrency` at a time, until SIGTERM, SIGINT or `close`; then close.

        A message is acked when its handler returns. An exception nacks it, with a back-off that doubles with each
        delivery. The second signal cancels the handlers, gives their messages back, and makes this raise `SystemExit`.
        The third signal, for a handler that blocks the event loop, does what it did before the run.
        """
        try:
            await Running(self, handler, concurrency, leave=partial(self.blocking.leave, 0.0)).run()
        finally:
            await self.close()

    async def flush(self, timeout: float = _STOP_SECONDS) -> bool:
        """Wait until the broker has answered all acks, nacks and rejects. Return False on timeout."""
        return await in_thread(partial(self.blocking.flush, timeout))

    async def leave(self, timeout: float = _STOP_SECONDS) -> None:
        """Leave the group, so that no more messages are started.

        Started messages can be received and settled until `close`. This waits up to `timeout` seconds. The consumer
        then continues to leave in the background.
        """
        await in_thread(partial(self.blocking.leave, timeout))

    async def close(self) -> None:
        """Leave the group, give back unsettled messages, wait for the broker's answers.

        Ends every waiting `receive`.
        """
        await result_of(begin(self.blocking.close, outlives_loop=True))
        self._forget(self)

    async def __aenter__(self) -> "QueueConsumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def in_progress(self) -> int:
        """The number of messages that are started and not settled, including those not received yet."""
        return self.blocking.in_progress

    def _take(self, most: int) -> list[Message]:
        """Take the messages that are there, and wake the next waiting coroutine if there were any."""
        try:
            messages = [Message(message) for message in self.blocking.receive_batch(most, 0)]
        except BaseException:
            # The other waiting coroutines must raise it too.
            self._wake()
            raise
        if messages:
            self._wake()
        return messages

    async def _wait(self, seconds: float | None) -> None:
        """Wait to be woken. A woken coroutine takes messages; if it is cancelled instead, it wakes the next one."""
        woken = self._loop.create_future()
        self._waiting.append(woken)
        try:
            await asyncio.wait((woken,), timeout=seconds)
        except asyncio.CancelledError:
            if woken.done():
                self._wake()
            raise
        finally:
            if not woken.done():
                self._waiting.remove(woken)

    def _wake(self) -> None:
        if self._waiting:
            self._waiting.popleft().set_result(None)

    def _hear(self) -> None:
        # Called from any thread. Nobody waits in a closed loop.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake)
