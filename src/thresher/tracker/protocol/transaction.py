"""The content of one tracker transaction: redelivered messages, dead letters, copies, a mark, and the offset."""

import enum
from dataclasses import dataclass, field

from thresher.core.errors import PipelineProblem
from thresher.queue.wire.marker import SYNTHETIC, Marker, MarkerType, MessageId
from thresher.tracker.protocol.started import Started


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivered:
    """A message to redeliver. `marker` is its Start, with the count of the coming delivery."""

    marker: Marker


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A message that becomes a dead letter."""

    marker: Marker
    reason: str
    kind: str
    # The size of the letter's parts, once a larger letter was refused.
    part_bytes: int | None = None


Fate = Redelivered | Dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The content of one transaction. Each message with a fate also gets an End."""

    offset: int
    fates: tuple[Fate, ...] = ()
    copies: tuple[Marker, ...] = ()
    # A mark's number, and the clock's time before it is written.
    mark: tuple[int, int] | None = None
    # The messages, in the order of `fates` or of `copies`.
    messages: tuple[Started, ...] = field(default=(), repr=False)


class RecordRefused(PipelineProblem):
    """The broker refuses a record that the tracker must write."""


class RefusedKind(enum.Enum):
    """Which of a transaction's records the broker refused."""

    MESSAGE = "the message topic refuses a message"
    LETTER = "the dead-letter topic refuses a dead letter"
    COPY = "the marker topic refuses the copy of a Start"


def mark(number: int) -> Marker:
    """Return our own mark with this number: an End without a message, which every reader of markers ignores."""
    return Marker(type=MarkerType.END, message_id=MessageId(SYNTHETIC, number))


def end_of(fate: Fate) -> Marker:
    """Return the End of a message that has a fate. Its origin keeps it from ending another message with the same id."""
    marker = fate.marker
    return Marker(
        type=MarkerType.END,
        message_id=marker.message_id,
        origin_id=marker.origin_id,
        enqueued_at_ms=marker.enqueued_at_ms,
    )
