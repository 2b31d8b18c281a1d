"""Runs a handler over the messages of a consumer, in several threads.

A message is acked when the handler returns, and nacked with a back-off when it raises; one that the handler has settled
itself is left alone. On SIGTERM or SIGINT no further message is taken, and the handlers that run are waited for.
"""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from thresher.core.errors import ThresherError
from thresher.queue.message import Message
from thresher.queue.problem import AlreadySettled, QueueClosed

logger = logging.getLogger(__name__)

# How long a thread waits before it looks whether to stop.
_LOOK_SECONDS = 0.5
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 1.0, 300.0

Handler = Callable[[Message], object]


class Receiving(Protocol):
    """Where messages come from."""

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None."""


def back_off(delivery_count: int) -> float:
    """Return after how many seconds a message that failed is redelivered: doubled with each delivery."""
    return float(min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** min(delivery_count - 1, 20)))


@contextmanager
def settling() -> Iterator[None]:
    """Let the end of a handler settle its message: where that cannot be done, the worker goes on."""
    try:
        yield
    except AlreadySettled:
        pass  # by the handler
    except QueueClosed:
        logger.warning("a consumer was closed before its handler returned: the message is redelivered")
    except ThresherError as error:
        # The broker takes no markers. The message stays in progress.
        logger.warning("a message could not be settled", extra={"reason": str(error)})


@contextmanager
def stopping_by_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Have `stop` called on SIGTERM and SIGINT meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may handle signals: elsewhere, the owner of the consumer calls `close`.
        yield
        return
    before = {kind: signal.signal(kind, lambda *_: stop()) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


class Running:
    """The threads of one `run`."""

    def __init__(
        self, consumer: Receiving, handler: Handler, concurrency: int, *, leave: Callable[[], None] = lambda: None
    ) -> None:
        """`leave` is called once no further message is taken: other consumers get what is left."""
        if concurrency < 1:
            raise ValueError(f"concurrency is 1 or more, not {concurrency}")
        self._consumer, self._handler = consumer, handler
        self._leave = leave
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._work, name=f"thresher-queue-handler-{number}", daemon=True)
            for number in range(concurrency)
        ]

    def run(self) -> None:
        """Handle messages until a signal or `stop`. Raises the error that ended the consumer, if one did."""
        with stopping_by_signals(self.stop):
            for thread in self._threads:
                thread.start()
            # Waits with a time-out, so that the interpreter handles signals.
            left = False
            while any(thread.is_alive() for thread in self._threads):
                for thread in self._threads:
                    thread.join(_LOOK_SECONDS)
                if self._stop.is_set() and not left:
                    left = True
                    self._leave()
        if self._errors:
            raise self._errors[0]

    def stop(self) -> None:
        """Take no further message."""
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                message = self._consumer.receive(_LOOK_SECONDS)
            except QueueClosed:
                return
            except BaseException as error:  # noqa: BLE001 - `run` raises it
                self._errors.append(error)
                self._stop.set()
                return
            if message is not None:
                self._handle(message)

    def _handle(self, message: Message) -> None:
        try:
            self._handler(message)
        except Exception:
            delay = back_off(message.delivery_count)
            logger.exception(
                "a handler failed: its message is redelivered",
                extra={"message_id": str(message.id), "delivery_count": message.delivery_count, "delay": delay},
            )
            with settling():
                message.nack(delay)
        except BaseException as error:  # noqa: BLE001 - `run` raises it: a handler that exits ends the program
            with settling():
                message.nack()
            self._errors.append(error)
            self._stop.set()
        else:
            with settling():
                message.ack()
