"""A message, as an application receives it, and what the application may do with it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from thresher.core.errors import InvalidInput
from thresher.queue.wire.marker import Headers, MessageId
from thresher.queue.wire.record import Record

__all__ = ["Ack", "Headers", "Message", "MessageId", "Nack", "Progress", "Reject", "Settlement"]


@dataclass(frozen=True, slots=True)
class Ack:
    """The message was processed."""


@dataclass(frozen=True, slots=True)
class Nack:
    """The message goes back to its queue, after so many seconds."""

    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Reject:
    """The message can never be processed: it becomes a dead letter."""

    reason: str


Settlement = Ack | Nack | Reject
_ACK = Ack()


class Progress(Protocol):
    """Where a message reports its progress: to Kafka's markers, or to the memory of a test."""

    def settle(self, message: "Message", settlement: Settlement, *, sync: bool) -> None:
        """End a message's progress. Raises `AlreadySettled` or `QueueClosed`; with `sync`, also `MarkerUnknown`."""

    def extend(self, message: "Message", seconds: float) -> None:
        """Put the redelivery off, to so many seconds from now. Raises `AlreadySettled` or `QueueClosed`."""


class Message:
    """One delivery of one message. Safe from any thread.

    Until it is settled, its consumer keeps it alive. If the process dies, the message is redelivered after the
    redelivery time-out, with another `id`, the same `origin_id`, and a `delivery_count` of one more.
    """

    __slots__ = ("_progress", "delivery_count", "enqueued_at_ms", "headers", "id", "origin_id", "payload", "queue")

    def __init__(
        self,
        *,
        queue: bytes,
        payload: bytes,
        headers: Headers,
        message_id: MessageId,
        origin_id: MessageId,
        delivery_count: int,
        enqueued_at_ms: int,
        progress: Progress,
    ) -> None:
        self.queue = queue
        self.payload = payload
        self.headers = headers
        self.id = message_id
        self.origin_id = origin_id
        self.delivery_count = delivery_count
        self.enqueued_at_ms = enqueued_at_ms
        self._progress = progress

    @classmethod
    def of(cls, record: Record, queue: bytes, progress: Progress) -> "Message":
        """Return the message that a record is, in that queue; `progress` is told what becomes of it."""
        return cls(
            queue=queue,
            payload=record.payload,
            headers=record.headers,
            message_id=record.message_id,
            origin_id=record.origin_id,
            delivery_count=record.delivery_count,
            enqueued_at_ms=record.enqueued_at_ms,
            progress=progress,
        )

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.queue!r}, delivery {self.delivery_count}, {len(self.payload)} bytes>"

    @property
    def enqueued_at(self) -> datetime:
        """When the message was first sent, by the clock of its sender or its broker."""
        return datetime.fromtimestamp(self.enqueued_at_ms / 1000, UTC)

    def ack(self, *, sync: bool = False) -> None:
        """Say that the message was processed, in whatever order. With `sync`, wait for the broker.

        Raises `AlreadySettled`, or `QueueClosed` after the consumer was closed.
        """
        self._progress.settle(self, _ACK, sync=sync)

    def nack(self, delay: float = 0.0, *, sync: bool = False) -> None:
        """Give the message back: it is redelivered after `delay` seconds, and counts as delivered."""
        if not is_number(delay) or not 0 <= delay <= MOST_SECONDS:
            raise ValueError(f"a delay of 0 to {MOST_SECONDS:g} seconds is needed, not {delay}")
        self._progress.settle(self, Nack(delay), sync=sync)

    def reject(self, reason: str, *, sync: bool = False) -> None:
        """Have the message become a dead letter, with this reason, of which the first thousand characters are kept."""
        if not isinstance(reason, str):
            raise InvalidInput(f"a reason is text, not {type(reason).__name__}")
        self._progress.settle(self, Reject(reason[:MOST_REASON]), sync=sync)

    def extend(self, seconds: float) -> None:
        """Put the redelivery off, to `seconds` from now at least: for work during which this process may be stopped."""
        if not is_number(seconds) or not 0 < seconds <= MOST_SECONDS:
            raise ValueError(f"more than 0 and at most {MOST_SECONDS:g} seconds are needed, not {seconds}")
        self._progress.extend(self, seconds)


def is_number(given: object) -> bool:
    """Whether this is a number of seconds: a text or a truth value is not."""
    return isinstance(given, int | float) and not isinstance(given, bool)


MOST_REASON = 1_000
# Twelve hours, as for the redelivery time-out.
MOST_SECONDS = 43_200.0
