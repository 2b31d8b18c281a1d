"""A message as an application receives it, and the operations on it."""

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
    """The message returns to its queue after a delay."""

    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Reject:
    """The message can never be processed: it becomes a dead letter."""

    reason: str


Settlement = Ack | Nack | Reject
_ACK = Ack()


class Progress(Protocol):
    """Receives a message's progress: sent to Kafka as markers, or kept in memory for tests."""

    def settle(self, message: "Message", settlement: Settlement, *, sync: bool) -> None:
        """Settle a message. Raises `AlreadySettled` or `QueueClosed`; with `sync`, also `MarkerUnknown`."""

    def extend(self, message: "Message", seconds: float) -> None:
        """Prevent redelivery for at least `seconds` from now. Raises `AlreadySettled` or `QueueClosed`."""


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
        """Make a message of a record. `progress` receives its settlement."""
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
        """The time of the first send, by the clock of the sender or of its broker."""
        return datetime.fromtimestamp(self.enqueued_at_ms / 1000, UTC)

    def ack(self, *, sync: bool = False) -> None:
        """Confirm that the message was processed. Messages can be acked in any order.

        With `sync`, wait for the broker. Raises `AlreadySettled`, or `QueueClosed` after the consumer was closed.
        """
        self._progress.settle(self, _ACK, sync=sync)

    def nack(self, delay: float = 0.0, *, sync: bool = False) -> None:
        """Give the message back: it is redelivered after `delay` seconds, and this delivery counts."""
        if not is_number(delay) or not 0 <= delay <= MOST_SECONDS:
            raise ValueError(f"a delay of 0 to {MOST_SECONDS:g} seconds is needed, not {delay}")
        self._progress.settle(self, Nack(delay), sync=sync)

    def reject(self, reason: str, *, sync: bool = False) -> None:
        """Make the message a dead letter with this reason. The first thousand characters of the reason are kept."""
        if not isinstance(reason, str):
            raise InvalidInput(f"a reason is text, not {type(reason).__name__}")
        self._progress.settle(self, Reject(reason[:MOST_REASON]), sync=sync)

    def extend(self, seconds: float) -> None:
        """Prevent redelivery for at least `seconds` from now, even if this process is stopped meanwhile."""
        if not is_number(seconds) or not 0 < seconds <= MOST_SECONDS:
            raise ValueError(f"more than 0 and at most {MOST_SECONDS:g} seconds are needed, not {seconds}")
        self._progress.extend(self, seconds)


def is_number(given: object) -> bool:
    """Whether this is an int or a float, and not a bool."""
    return isinstance(given, int | float) and not isinstance(given, bool)


MOST_REASON = 1_000
# Twelve hours, as for the redelivery time-out.
MOST_SECONDS = 43_200.0
