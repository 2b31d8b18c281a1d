"""A message, as a coroutine receives it."""

from datetime import datetime
from functools import partial

from thresher.queue import message as blocking_message
from thresher.queue.aio.blocking_call import in_thread


class Message:
    """One delivery of one message: `thresher.queue.Message` with methods to await."""

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
        """The time of the first send, by the clock of the sender or of its broker."""
        return self._message.enqueued_at

    async def ack(self, *, sync: bool = False) -> None:
        """Confirm that the message was processed. Messages can be acked in any order.

        With `sync`, wait for the broker, in a thread. Raises `AlreadySettled`, or `QueueClosed` after the consumer was
        closed.
        """
        if sync:
            await in_thread(partial(self._message.ack, sync=True))
        else:
            self._message.ack()

    async def nack(self, delay: float = 0.0, *, sync: bool = False) -> None:
        """Give the message back: it is redelivered after `delay` seconds, and this delivery counts."""
        if sync:
            await in_thread(partial(self._message.nack, delay, sync=True))
        else:
            self._message.nack(delay)

    async def reject(self, reason: str, *, sync: bool = False) -> None:
        """Make the message a dead letter with this reason."""
        if sync:
            await in_thread(partial(self._message.reject, reason, sync=True))
        else:
            self._message.reject(reason)

    async def extend(self, seconds: float) -> None:
        """Prevent redelivery for at least `seconds` from now."""
        self._message.extend(seconds)
