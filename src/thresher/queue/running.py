"""Runs a handler over the messages of a consumer, in several threads.

A message is acked when the handler returns, and nacked with a back-off when it raises; one that the handler has settled
itself is left alone. On SIGTERM or SIGINT no further message is taken, and the handlers that run are waited for. The
second signal waits for no handler: `run` ends by `SystemExit`, and closing gives back the messages that handlers have.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Protocol

from thresher.core.errors import ThresherError
from thresher.core.signals import stopped_by_signals
from thresher.queue.message import Message, MessageId
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


class Delivery(Protocol):
    """A message, of threads or of asyncio."""

    id: MessageId
    delivery_count: int


def back_off(delivery_count: int) -> float:
    """Return after how many seconds a message that failed is redelivered: doubled with each delivery."""
    return float(min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** min(delivery_count - 1, 20)))


def delay_after_failure(message: Delivery) -> float:
    """Log the exception of a handler, where it is caught; return after how many seconds its message is redelivered."""
    delay = back_off(message.delivery_count)
    logger.exception(
        "a handler failed: its message is redelivered",
        extra={"message_id": str(message.id), "delivery_count": message.delivery_count, "delay": delay},
    )
    return delay


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


def require_concurrency(given: int) -> None:
    """Raise `ValueError` unless there can be so many handlers at a time."""
    if given < 1:
        raise ValueError(f"concurrency is 1 or more, not {given}")


def end_of_run(errors: list[BaseException], status: int | None) -> None:
    """Raise the error that ended a run, or `SystemExit` where its handlers were abandoned, with this exit status."""
    if errors:
        raise errors[0]
    if status is not None:
        logger.warning("a second signal came: handlers are not waited for, and their messages are given back")
        raise SystemExit(status)


class Running:
    """The threads of one `run`."""

    def __init__(
        self, consumer: Receiving, handler: Handler, concurrency: int, *, leave: Callable[[], None] = lambda: None
    ) -> None:
        """`leave` is called once no further message is taken: other consumers get what is left."""
        require_concurrency(concurrency)
        self._consumer, self._handler = consumer, handler
        self._leave = leave
        self._stopping = False
        # The exit status, once handlers are not waited for.
        self._status: int | None = None
        # How many threads have ended, one by one, or 0 to look at the above. A signal handler may put.
        self._ended: SimpleQueue[int] = SimpleQueue()
        self._errors: list[BaseException] = []
        # Daemons: the interpreter waits for none of them either.
        self._threads = [
            threading.Thread(target=self._work, name=f"thresher-queue-handler-{number}", daemon=True)
            for number in range(concurrency)
        ]

    def run(self) -> None:
        """Handle messages until a signal or `stop`.

        Raises the error that ended the consumer, what a handler exits with, or `SystemExit` after a second signal.
        """
        with stopped_by_signals(self.stop, self.abandon):
            for thread in self._threads:
                thread.start()
            working, left = len(self._threads), False
            while working and self._status is None:
                working -= self._ended.get()
                if self._stopping and not left:
                    left = True
                    self._leave()
        end_of_run(self._errors, self._status)

    def stop(self) -> None:
        """Take no further message."""
        self._stopping = True
        self._ended.put(0)

    def abandon(self, status: int) -> None:
        """Wait for no handler: `run` ends by `SystemExit`, with this status."""
        self._status = status
        self.stop()

    def _work(self) -> None:
        try:
            while not self._stopping:
                if (message := self._consumer.receive(_LOOK_SECONDS)) is not None:
                    self._handle(message)
        except QueueClosed:
            pass
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._fail(error)
        finally:
            self._ended.put(1)

    def _handle(self, message: Message) -> None:
        try:
            self._handler(message)
        except Exception:  # noqa: BLE001 - it is logged
            delay = delay_after_failure(message)
            with settling():
                message.nack(delay)
        except BaseException as error:  # noqa: BLE001 - `run` raises it: a handler that exits ends the program
            # Closing gives the message back: a nack could bring it to another of these threads.
            self._fail(error)
        else:
            with settling():
                message.ack()

    def _fail(self, error: BaseException) -> None:
        self._errors.append(error)
        self.stop()
