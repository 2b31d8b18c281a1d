"""The fate of a row, as a progress record holds it: sent, filtered or dead."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from thresher.core.dead_kind import Kind
from thresher.kafka.refusal import Refusal

__all__ = ["DEAD_KINDS", "FILTERED", "SENT", "Dead", "Fate", "Filtered", "Kind", "Sent", "dead"]

# In characters. A reason is for people to read; the row itself is kept whole.
_LONGEST_REASON = 500


# The dead-letter kind for each refusal of the broker. Any other refusal may pass by itself.
DEAD_KINDS: Mapping[Refusal | None, Kind] = {
    Refusal.ROW: Kind.REJECTED,
    Refusal.TIME: Kind.REJECTED,
    Refusal.SIZE: Kind.TOO_LARGE,
    Refusal.TOPIC: Kind.NO_TOPIC,
    Refusal.TOPIC_DENIED: Kind.NOT_AUTHORISED,
}


@dataclass(frozen=True, slots=True)
class Sent:
    """The row's record is part of the transaction that carries the progress record."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """A transform or compaction left the row out: it is settled without being sent."""


class Dead(NamedTuple):
    """The row can never be sent. `blocking`: later rows of its topic and key wait for an operator."""

    kind: Kind
    reason: str
    attempts: int = 1
    blocking: bool = False


Fate = Sent | Filtered | Dead

SENT, FILTERED = Sent(), Filtered()


def dead(kind: Kind, reason: str, attempts: int = 1, *, blocking: bool = False) -> Dead:
    """Return the fate, with its reason cut and cleaned so that Postgres can store it."""
    text = reason.replace("\0", "�").encode("utf-8", "replace").decode()
    cut = text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
    return Dead(kind, cut, attempts, blocking)
