"""Sends messages to a queue, from coroutines."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from thresher.core.secrets import revealed
from thresher.queue.aio.blocking_call import begin, result_of
from thresher.queue.configuration import QueueConfig
from thresher.queue.message import MessageId
from thresher.queue.problem import QueueClosed
from thresher.queue.sending import producer as blocking_producer
from thresher.queue.sending.producer import GivenHeaders
from thresher.queue.sending.sent import Sent

_MOST_SENDS = 10_000
# librdkafka's default limits of a client's send queue. 0 messages means no limit of their number.
_QUEUED_MESSAGES, _QUEUED_KILOBYTES = 100_000, 1_048_576


def room_for_sends(config: QueueConfig) -> int:
    """Return the limit of sends in flight: half of the client's send queue, so that no send waits for room in it."""
    client: dict[str, Any] = {**config.clients, **config.producer}
    messages = int(revealed(client.get("queue.buffering.max.messages", _QUEUED_MESSAGES))) or _QUEUED_MESSAGES
    kilobytes = int(revealed(client.get("queue.buffering.max.kbytes", _QUEUED_KILOBYTES)))
    return max(1, min(_MOST_SENDS, messages // 2, kilobytes * 512 // config.max_message_bytes))


class QueueProducer:
    """Sends to one queue. An asynchronous context manager."""

    def __init__(
        self,
        producer: blocking_producer.QueueProducer,
        room: asyncio.Semaphore,
        forget: Callable[["QueueProducer"], None],
    ) -> None:
        # The blocking producer that this one wraps.
        self.blocking = producer
        self._room, self._forget = room, forget
        self._sending: set[asyncio.Task[MessageId]] = set()
        self._closed = False

    async def send(
        self,
        payload: bytes | str,
        headers: GivenHeaders | None = None,
        *,
        delay: float = 0.0,
        max_deliveries: int | None = None,
        ttl: float | None = None,
    ) -> MessageId:
        """Send a message, and return its id once every in-sync replica has it.

        The limits are those of the blocking `send`. Raises `MessageInvalid` or `SendRefused` if the message is not in
        the queue, and `SendUnknown` if that is not known.
        """
        return await self.send_async(payload, headers, delay=delay, max_deliveries=max_deliveries, ttl=ttl)

    def send_async(
        self,
        payload: bytes | str,
        headers: GivenHeaders | None = None,
        *,
        delay: float = 0.0,
        max_deliveries: int | None = None,
        ttl: float | None = None,
    ) -> asyncio.Future[MessageId]:
        """Send a message without waiting; return a future of its id. Every error of `send` is raised by the future."""
        if self._closed:
            raise QueueClosed("the producer was closed")
        send = partial(
            self.blocking.send_async, payload, headers, delay=delay, max_deliveries=max_deliveries, ttl=ttl
        )  # fmt: skip
        sending = asyncio.get_running_loop().create_task(self._send(send, delayed=delay > 0))
        # The event loop keeps only weak references to its tasks.
        self._sending.add(sending)
        sending.add_done_callback(self._sending.discard)
        return sending

    async def flush(self, timeout: float | None = None) -> bool:
        """Wait until every send is answered. Return False on timeout. Errors are raised by the futures."""
        if not self._sending:
            return True
        _, left = await asyncio.wait(tuple(self._sending), timeout=timeout)
        return not left

    async def close(self) -> None:
        """Accept no more sends, and wait for those in flight."""
        try:
            await self.finish()
        finally:
            closing = begin(self.blocking.close, outlives_loop=True)
        await result_of(closing)
        self._forget(self)

    async def finish(self) -> None:
        """Accept no more sends, and wait for those in flight. The client answers each within `send-timeout`."""
        self._closed = True
        await self.flush()

    async def __aenter__(self) -> "QueueProducer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, send: Callable[[], Sent], *, delayed: bool) -> MessageId:
        await self._room.acquire()
        try:
            # In a thread, because a send with a delay first asks the broker for the marker topic's partitions.
            sent = asyncio.wrap_future(await result_of(begin(send)) if delayed else send())
        except BaseException:
            self._room.release()
            raise
        # A cancelled send stays in the client's queue until it is answered.
        sent.add_done_callback(lambda _: self._room.release())
        return await asyncio.shield(sent)
