"""Runs a handler over the messages of a consumer, in several coroutines: `thresher.queue.running` for asyncio.

`thresher.core.signals` defines what signals do. The second signal cancels the handlers.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from thresher.core.signals import stopped_by_signals
from thresher.queue.aio.message import Message
from thresher.queue.problem import QueueClosed
from thresher.queue.running import delay_after_failure, end_of_run, require_concurrency, settling

# How long a cancelled handler may take to end after the second signal.
_ABANDON_SECONDS = 1.0

Handler = Callable[[Message], Awaitable[object]]


class Receiving(Protocol):
    """The source of messages."""

    async def receive(self) -> Message | None:
        """Return the next message, or None. A cancelled call has taken no message."""


class Running:
    """The coroutines of one `run`."""

    def __init__(self, consumer: Receiving, handler: Handler, concurrency: int, *, leave: Callable[[], None]) -> None:
        """`leave` is called once no more messages are taken: the group's other consumers get the rest.

        It must be quick.
        """
        require_concurrency(concurrency)
        self._consumer, self._handler, self._concurrency, self._leave = consumer, handler, concurrency, leave
        self._loop = asyncio.get_running_loop()
        self._working: set[asyncio.Task[None]] = set()
        # Tasks without a message: they can be cancelled at any time.
        self._idle: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._over = asyncio.Event()
        # The exit status after the second signal; None before it.
        self._status: int | None = None
        self._errors: list[BaseException] = []

    async def run(self) -> None:
        """Handle messages until a signal or `close`.

        Raises the error that ended the consumer, a handler's `SystemExit` or `KeyboardInterrupt`, or `SystemExit` after
        a second signal. If this is cancelled, it cancels its handlers and waits for them.
        """
        with stopped_by_signals(self.stop, self.abandon):
            self._working = {self._loop.create_task(self._work()) for _ in range(self._concurrency)}
            for task in self._working:
                task.add_done_callback(self._ended)
            try:
                await self._over.wait()
            except asyncio.CancelledError:
                self._cancel()
                await self._over.wait()
                raise
        end_of_run(self._errors, self._status)

    def stop(self) -> None:
        """Take no more messages. Safe from any thread and from a signal handler."""
        self._soon(self._stop)

    def abandon(self, status: int) -> None:
        """Wait for no handler: `run` raises `SystemExit` with this status. Safe from any thread, like `stop`."""
        self._status = status
        self._soon(self._cancel)
        # A handler may continue although it was cancelled.
        self._soon(lambda: self._loop.call_later(_ABANDON_SECONDS, self._over.set))

    def _soon(self, call: Callable[[], object]) -> None:
        # Nobody waits in a closed loop.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def _stop(self) -> None:
        if not self._stopping:
            self._stopping = True
            self._leave()
        for task in self._idle:
            task.cancel()

    def _cancel(self) -> None:
        self._stop()
        for task in self._working - self._idle:
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        if not self._working:
            self._over.set()

    def _fail(self, error: BaseException) -> None:
        self._errors.append(error)
        self._stop()

    async def _work(self) -> None:
        while not self._stopping:
            try:
                message = await self._next()
            except QueueClosed:
                return
            except Exception as error:  # noqa: BLE001 - `run` raises it
                self._fail(error)
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
                # The run itself is cancelled, not a task that the handler awaited. Closing gives the message back.
                raise
            delay = delay_after_failure(message)
            with settling():
                await message.nack(delay)
        except (SystemExit, KeyboardInterrupt) as error:
            # `run` raises it after the other handlers have returned; raised here, it would end the event loop. Closing
            # gives the message back.
            self._fail(error)
        else:
            with settling():
                await message.ack()


def _this_task() -> "asyncio.Task[None]":
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine
    return task
