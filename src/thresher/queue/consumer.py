"""Receives the messages of a queue. Each message is started once, and redelivered unless it is acked."""

import logging
import threading
from collections.abc import Callable, Iterator

from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.hand_off.member import MemberThread
from thresher.queue.in_progress import InProgress
from thresher.queue.keep_alive import KeepAlive
from thresher.queue.markers import Markers
from thresher.queue.message import Message
from thresher.queue.problem import QueueClosed
from thresher.queue.running import Handler, Running

logger = logging.getLogger(__name__)

# How long `close` waits for a hand-off in flight, and for the broker's answers.
_STOP_SECONDS = 30.0


class QueueConsumer:
    """Receives from one queue, which may have any number of consumers. Thread-safe; a context manager; an iterator."""

    def __init__(
        self,
        buffer: ReceiveBuffer,
        in_progress: InProgress,
        member: MemberThread,
        markers: Markers,
        keep_alive: KeepAlive,
        *,
        forget: Callable[["QueueConsumer"], None],
    ) -> None:
        self._buffer, self._in_progress, self._member = buffer, in_progress, member
        self._markers, self._keep_alive, self._forget = markers, keep_alive, forget
        self._closing = threading.RLock()
        self._closed = False
        keep_alive.add(in_progress)
        member.start()

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None if none came within `timeout` seconds. Without a timeout, wait indefinitely.

        Raises `QueueClosed` after `close`, even in a `receive` that was waiting, or the error that ended the consumer.
        """
        messages = self.receive_batch(1, timeout)
        return messages[0] if messages else None

    def receive_batch(self, most: int, timeout: float | None = None) -> list[Message]:
        """Return up to `most` messages: wait for the first as `receive` does, then add those that are already there."""
        if most < 1:
            raise ValueError(f"`most` must be at least 1, not {most}")
        return self._buffer.take(most, timeout, self._in_progress.received)

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.receive()
            except QueueClosed:
                return
            if message is not None:
                yield message

    def run(self, handler: Handler, concurrency: int = 1) -> None:
        """Call a handler for each message, in `concurrency` threads, until SIGTERM, SIGINT or `close`; then close.

        A message is acked when its handler returns. An exception nacks it, with a back-off that doubles with each
        delivery.
        """
        try:
            Running(self, handler, concurrency, leave=lambda: self.leave(0.0)).run()
        finally:
            self.close()

    def listen(self, listener: Callable[[], None]) -> None:
        """Register a function to be called, from any thread, whenever `receive` may return more. It must be quick."""
        self._buffer.listen(listener)

    def flush(self, timeout: float = _STOP_SECONDS) -> bool:
        """Wait until the broker has answered all acks, nacks and rejects. Return False on timeout."""
        return self._markers.flush(timeout)

    def leave(self, timeout: float = _STOP_SECONDS) -> None:
        """Leave the group, so that no more messages are started.

        Started messages can be received and settled until `close`. Once they are received, `receive` raises
        `QueueClosed`. This waits up to `timeout` seconds. The consumer then continues to leave in the background.
        """
        self._member.stop(timeout)

    def close(self) -> None:
        """Leave the group, give back unsettled messages, wait for the broker's answers.

        Ends every waiting `receive`.
        """
        # A second thread that closes waits here for the first one: the service closes its producer afterwards.
        with self._closing:
            # After a KeyboardInterrupt, `close` can be called again: each step may run twice.
            if self._closed:
                return
            self._buffer.close()
            if not self._member.stop(_STOP_SECONDS):
                logger.warning("a consumer's thread did not end in time", extra={"seconds": _STOP_SECONDS})
            self._keep_alive.remove(self._in_progress)
            self._in_progress.give_back()
            self.flush()
            self._forget(self)
            self._closed = True

    @property
    def closed(self) -> bool:
        """Whether `close` has returned: the consumer has left its group and given back what was not settled."""
        return self._closed

    def __enter__(self) -> "QueueConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def in_progress(self) -> int:
        """The number of messages that are started and not settled, including those not received yet."""
        return len(self._in_progress)
