"""A message that is being sent: the future of its id, and the client's delivery callback.

Programs send hundreds of thousands of messages a second and wait for few. So each send is one object, and the condition
and the lists of a future are made only when a thread waits.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from typing import Any, Protocol

from confluent_kafka import KafkaError, Message

from thresher.kafka.refusal import is_refusal, outcome
from thresher.queue.message import MessageId
from thresher.queue.problem import SendRefused, SendUnknown

logger = logging.getLogger(__name__)

# Shared by all sends: it is held only for a few instructions.
_lock = threading.Lock()


def unknown(why: str) -> str:
    """Return the error message for a send whose outcome is unknown."""
    return f"whether the message was sent is unknown: {why}; sending again may put it into the queue twice"


class Sender(Protocol):
    """The producer that sends a message."""

    def answered(self, sent: "Sent", error: KafkaError | None, sent_at: float) -> None:
        """Register the broker's answer for a message that was sent at `sent_at`."""


class Sent(Future[MessageId]):
    """The future of one send. It cannot be cancelled: the message is in flight."""

    # A future's initial attributes, as class attributes: fewer objects for the garbage collector to visit.
    _state = RUNNING
    _result: MessageId | None = None
    _exception: BaseException | None = None
    _made: threading.Condition | None = None

    # The message's id if it is not the record's partition and offset.
    message_id: MessageId | None = None

    def __init__(self, sender: Sender, callback: Callable[["Sent"], None] | None) -> None:
        # Without `super().__init__()`, which makes a condition.
        self._sender, self._callback = sender, callback
        self._began = time.monotonic()

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        with _lock:
            if self._made is None:
                # A future uses its lists only while it holds its condition.
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                self._made = threading.Condition()
            return self._made

    def __call__(self, given: KafkaError | None, record: Message) -> None:
        """Handle the broker's answer. Called once, by the thread that serves all sends."""
        error = None if given is None else outcome(given, record)
        try:
            if error is None:
                self._finish(self.message_id or MessageId(record.partition() or 0, record.offset() or 0), None)
            elif is_refusal(error):
                self._finish(None, SendRefused(f"the broker refused the message: {error.str()}"))
            else:
                self._finish(None, SendUnknown(unknown(error.str())))
            if self._callback is not None:
                self._callback(self)
        except Exception:
            logger.exception("the callback of a send failed")
        finally:
            # Last, because a thread that waits for all messages may end the program.
            self._sender.answered(self, error, self._began)

    def _finish(self, result: MessageId | None, exception: BaseException | None) -> None:
        with _lock:
            if self._made is None:
                self._result, self._exception = result, exception
                # Last, because a thread that sees FINISHED may read the result.
                self._state = FINISHED
                return
        if exception is None:
            super().set_result(result)  # type: ignore[arg-type]
        else:
            super().set_exception(exception)

    def done(self) -> bool:
        """Return whether the broker has answered."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> MessageId:
        """Wait for the message's id, and return it. Raises `SendRefused` or `SendUnknown`."""
        if self._state == FINISHED and self._result is not None:
            return self._result
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the answer, and return the error, or None if the message was sent."""
        return self._exception if self._state == FINISHED else super().exception(timeout)
