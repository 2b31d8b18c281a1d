"""A message, as a coroutine receives it."""

from datetime import datetime
from functools import partial

from thresher.queue import message as blocking_message
from thresher.queue.aio.blocking_call import in_thread


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
        """Say that the message was processed, in whatever order. With `sync`, wait for the broker, in a thread.

        Raises `AlreadySettled`, or `QueueClosed` after the consumer was closed.
        """
        if sync:
            await in_thread(partial(self._message.ack, sync=True))
        else:
            self._message.ack()

    async def nack(self, delay: float = 0.0, *, sync: bool = False) -> None:
        """Give the message back: it is redelivered after `delay` seconds, and counts as delivered."""
        if sync:
            await in_thread(partial(self._message.nack, delay, sync=True))
        else:
            self._message.nack(delay)

    async def reject(self, reason: str, *, sync: bool = False) -> None:
        """Have the message become a dead letter, with this reason."""
        if sync:
            await in_thread(partial(self._message.reject, reason, sync=True))
        else:
            self._message.reject(reason)

    async def extend(self, seconds: float) -> None:
        """Put the redelivery off, to `seconds` from now at least."""
        self._message.extend(seconds)
