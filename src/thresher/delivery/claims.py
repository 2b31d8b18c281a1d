"""Which of a shard's transactional ids may be written with: the one of the last claim that counts.

A broker refuses a transactional id whose last transaction cannot end, for as long as a partition of it cannot be
written to. So a shard has several ids, its **lanes**, and moves to another one: its other topics may be healthy.

1. After `init_transactions`, an attempt commits a claim to its progress partition, through the lane that it wants to
   write with, and reads the partition up to that claim. A reader that does not find the claim was shown an old end.
2. A claim counts if it comes through the lane of the last claim that counts: `init_transactions` has fenced its author.
   It also counts if both have the same author, who numbers claims: an attempt moves to another lane only after its own
   producer is gone.
3. Only the author of the last claim that counts takes rows. Any other attempt finds its claim without effect, and
   starts over with the lane of the one that counts.

The partition's order decides, so no two attempts differ about who may write. A progress record says whose claim counted
when it was written: what lies before the last one need not be read.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# A shard goes on while all but one of its lanes are blocked.
LANES = 3
_MARK = "claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An attempt's word that it writes with this lane. `claimant` is drawn anew by each attempt.

    `number` tells an attempt's claims apart: a reader that finds an older one has not reached the last.
    """

    lane: int
    claimant: str
    number: int = 0

    def encoded(self) -> bytes:
        """Return the claim as the key of a record."""
        return f"{_MARK}/{self.lane}/{self.claimant}/{self.number}".encode()


# Before the first claim, everybody wrote with lane 0.
UNCLAIMED = Claim(lane=0, claimant="")


def decoded(key: bytes | None) -> Claim | None:
    """Return the claim that a record's key holds; None where it holds none."""
    match (key or b"").decode("utf-8", "replace").split("/"):
        case [mark, lane, claimant, number] if mark == _MARK and lane.isdecimal() and number.isdecimal():
            return Claim(lane=int(lane), claimant=claimant, number=int(number))
    return None


def holder(last: Claim | None, later: Iterable[Claim]) -> Claim:
    """Return the last claim that counts: `last` is that of the last progress record, `later` are those behind it."""
    held = last or UNCLAIMED
    for claim in later:
        # A stranger may copy a claim, seal and all: an author never goes back to an older one.
        own = claim.claimant == held.claimant
        if claim.number > held.number if own else claim.lane == held.lane:
            held = claim
    return held
