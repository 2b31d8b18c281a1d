"""What becomes of a row: the three fates that a progress record can hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from thresher.core.dead_kind import Kind
from thresher.kafka.refusal import Refusal

__all__ = ["DEAD_KINDS", "FILTERED", "SENT", "Dead", "Fate", "Filtered", "Kind", "Sent", "dead"]

# A reason is for a person to read; the row itself is kept whole.
_LONGEST_REASON = 500


# The dead-letter kind for each refusal of the broker. For any other refusal, time may mend it.
DEAD_KINDS: Mapping[Refusal | None, Kind] = {
    Refusal.ROW: Kind.REJECTED,
    Refusal.TIME: Kind.REJECTED,
    Refusal.SIZE: Kind.TOO_LARGE,
    Refusal.TOPIC: Kind.NO_TOPIC,
    Refusal.TOPIC_DENIED: Kind.NOT_AUTHORISED,
}


@dataclass(frozen=True, slots=True)
class Sent:
    """It is part of the transaction that carries the progress record."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """A transform left it out: it is settled without being sent."""


class Dead(NamedTuple):
    """It can never be sent, and is set aside. `blocking`: the later rows of its topic and key wait for an operator."""

    kind: Kind
    reason: str
    attempts: int = 1
    blocking: bool = False


Fate = Sent | Filtered | Dead

SENT, FILTERED = Sent(), Filtered()


def dead(kind: Kind, reason: str, attempts: int = 1, *, blocking: bool = False) -> Dead:
    """Return the fate with a reason of bounded length that Postgres can store."""
    text = reason.replace("\0", "�").encode("utf-8", "replace").decode()
    cut = text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
    return Dead(kind, cut, attempts, blocking)
