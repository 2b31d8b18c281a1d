"""What a tracker writes in one transaction: redelivered messages, dead letters, copies, a mark, and the offset."""

from dataclasses import dataclass, field

from thresher.queue.wire.marker import SYNTHETIC, Marker, MarkerType, MessageId
from thresher.tracker.protocol.started import Started


@dataclass(frozen=True, slots=True, kw_only=True)
class Redelivered:
    """A message that goes back to its queue; `marker` is its Start, with the count of the delivery to come."""

    marker: Marker


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead:
    """A message that is not delivered again."""

    marker: Marker
    reason: str
    kind: str


Fate = Redelivered | Dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """What is to be written in one transaction. Each message that has a fate gets an End."""

    offset: int
    fates: tuple[Fate, ...] = ()
    copies: tuple[Marker, ...] = ()
    # The number of a mark, and what the clock says before it is written.
    mark: tuple[int, int] | None = None
    # What it concerns, in the order of `fates`, or of `copies`.
    messages: tuple[Started, ...] = field(default=(), repr=False)


def mark(number: int) -> Marker:
    """Return our own mark of that number: an End of no message, which every reader of markers passes over."""
    return Marker(type=MarkerType.END, message_id=MessageId(SYNTHETIC, number))


def end_of(fate: Fate) -> Marker:
    """Return the End of a message that has a fate. It ends no other one that has come to have the same id."""
    marker = fate.marker
    return Marker(
        type=MarkerType.END,
        message_id=marker.message_id,
        origin_id=marker.origin_id,
        enqueued_at_ms=marker.enqueued_at_ms,
    )
