"""Runs a handler over the messages of a consumer, in several threads.

A message is acked when its handler returns, and nacked with a back-off when the handler raises. A message that the
handler settled itself is left alone. The first SIGTERM or SIGINT stops taking messages and waits for the running
handlers. The second signal waits for no handler: `run` raises `SystemExit`, and closing gives their messages back.
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

# How often an idle thread checks whether to stop.
_LOOK_SECONDS = 0.5
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 1.0, 300.0

Handler = Callable[[Message], object]


class Receiving(Protocol):
    """The source of messages."""

    def receive(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None."""


class Delivery(Protocol):
    """A message, blocking or asyncio."""

    id: MessageId
    delivery_count: int


def back_off(delivery_count: int) -> float:
    """Return the delay before a failed message is redelivered, in seconds: doubled with each delivery."""
    return float(min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2 ** min(delivery_count - 1, 20)))


def delay_after_failure(message: Delivery) -> float:
    """Log the handler's exception, inside its `except`; return the seconds until the message is redelivered."""
    delay = back_off(message.delivery_count)
    logger.exception(
        "a handler failed: its message is redelivered",
        extra={"message_id": str(message.id), "delivery_count": message.delivery_count, "delay": delay},
    )
    return delay


@contextmanager
def settling() -> Iterator[None]:
    """Settle a message after its handler. An error is logged, so that the worker continues."""
    try:
        yield
    except AlreadySettled:
        pass  # by the handler
    except QueueClosed:
        logger.warning("a consumer was closed before its handler returned: the message is redelivered")
    except ThresherError as error:
        # The broker accepts no markers. The message stays in progress until its time-out.
        logger.warning("a message could not be settled", extra={"reason": str(error)})


def require_concurrency(given: int) -> None:
    """Raise `ValueError` unless the number of handlers is at least 1."""
    if given < 1:
        raise ValueError(f"concurrency must be 1 or more, not {given}")


def end_of_run(errors: list[BaseException], status: int | None) -> None:
    """Raise the error that ended a run, or `SystemExit` with this status if its handlers were abandoned."""
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
        """`leave` is called once no more messages are taken: the group's other consumers get the rest."""
        require_concurrency(concurrency)
        self._consumer, self._handler = consumer, handler
        self._leave = leave
        self._stopping = False
        # The exit status after the second signal; None before it.
        self._status: int | None = None
        # 1 for each thread that has ended; 0 to wake `run`, for example from a signal handler.
        self._ended: SimpleQueue[int] = SimpleQueue()
        self._errors: list[BaseException] = []
        # Daemon threads, because the interpreter must not wait for abandoned handlers.
        self._threads = [
            threading.Thread(target=self._work, name=f"thresher-queue-handler-{number}", daemon=True)
            for number in range(concurrency)
        ]

    def run(self) -> None:
        """Handle messages until a signal or `stop`.

        Raises the error that ended the consumer, a handler's `SystemExit` or `KeyboardInterrupt`, or `SystemExit` after
        a second signal.
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
        """Take no more messages."""
        self._stopping = True
        self._ended.put(0)

    def abandon(self, status: int) -> None:
        """Wait for no handler: `run` raises `SystemExit` with this status."""
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
            # Closing gives the message back: after a nack, another of these threads could receive it.
            self._fail(error)
        else:
            with settling():
                message.ack()

    def _fail(self, error: BaseException) -> None:
        self._errors.append(error)
        self.stop()
