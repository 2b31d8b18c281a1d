"""Receives the messages of a queue: each is started once, and redelivered unless it is acked."""

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

# How long `close` waits for a hand-off that is under way, and for the broker's answers.
_STOP_SECONDS = 30.0


class QueueConsumer:
    """Receives from one queue, beside any number of others. Safe from any thread; a context manager; an iterator."""

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
        """Return the next message, or None if none came within `timeout` seconds; without one, wait for ever.

        Raises `QueueClosed` after `close`, also where it was waiting, or the error that ended the consumer.
        """
        messages = self.receive_batch(1, timeout)
        return messages[0] if messages else None

    def receive_batch(self, most: int, timeout: float | None = None) -> list[Message]:
        """Return up to `most` messages: wait for the first, as `receive` does, and take those that are there."""
        if most < 1:
            raise ValueError(f"at least one message has to be asked for, not {most}")
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
        """Call a handler with each message, in so many threads, until SIGTERM, SIGINT or `close`; then close.

        Ack on return; on an exception nack, with a back-off that doubles with each delivery.
        """
        try:
            Running(self, handler, concurrency, leave=lambda: self.leave(0.0)).run()
        finally:
            self.close()

    def listen(self, listener: Callable[[], None]) -> None:
        """Have a function called, from any thread, whenever `receive` may return more than before. It must be quick."""
        self._buffer.listen(listener)

    def flush(self, timeout: float = _STOP_SECONDS) -> bool:
        """Wait until the broker has answered for the acks, nacks and rejects given, and return whether it has."""
        return self._markers.flush(timeout)

    def leave(self, timeout: float = _STOP_SECONDS) -> None:
        """Leave the group: nothing more is started. What was started can be received and settled until `close`.

        A `receive` that finds nothing more raises `QueueClosed`. This waits so many seconds, and goes on in the
        background.
        """
        self._member.stop(timeout)

    def close(self) -> None:
        """Leave the group, give back what was not settled, and wait for the broker's answers. Ends every `receive`."""
        # Another thread that closes too waits here until it is done: the service's producer is closed behind it.
        with self._closing:
            # Broken off by a KeyboardInterrupt, it can be called again: each step may be done twice.
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

    def __enter__(self) -> "QueueConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def in_progress(self) -> int:
        """How many messages are started and not settled, those that wait to be received included."""
        return len(self._in_progress)
