"""Decides with which of its transactional ids a shard may write: the id of the last claim that counts.

A transaction cannot end while one of its partitions cannot be written to, and until it ends the broker refuses its
transactional id. So a shard has several transactional ids, numbered by their `id_index`. When one is blocked, the shard
goes on with another: its other topics may be healthy.

1. After `init_transactions`, an attempt commits a claim to its progress partition, with the id that it wants to use.
   Then it reads the partition up to that claim. If the claim is not there, the broker showed an old end of the
   partition, and the read is refused.
2. A claim counts if it uses the same id as the last claim that counts: `init_transactions` has fenced that claim's
   author. A claim also counts if it has the same author and a higher number: an attempt moves to another id only
   after its own producer is gone.
3. Only the author of the last claim that counts takes rows. Any other attempt finds that its claim does not count, and
   starts over with the id of the claim that does.

The order of records in the partition decides, so all attempts agree on which of them may write. A progress record
carries its writer's claim, so nothing before the last progress record has to be read.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# Transactional ids of a shard: it goes on while at least one of them is not blocked.
IDS_PER_SHARD = 3
_MARK = "claim"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """States that an attempt writes with this transactional id of its shard. `claimant` is a random id of the attempt.

    `number` orders an attempt's claims: a reader that finds an older one has not reached the last.
    """

    id_index: int
    claimant: str
    number: int = 0

    def encoded(self) -> bytes:
        """Return the claim as the key of a record."""
        return f"{_MARK}/{self.id_index}/{self.claimant}/{self.number}".encode()


# Before the first claim, every attempt writes with the shard's first transactional id.
UNCLAIMED = Claim(id_index=0, claimant="")


def decoded(key: bytes | None) -> Claim | None:
    """Return the claim in a record's key; None if the key holds no claim."""
    match (key or b"").decode("utf-8", "replace").split("/"):
        case [mark, id_index, claimant, number] if mark == _MARK and id_index.isdecimal() and number.isdecimal():
            return Claim(id_index=int(id_index), claimant=claimant, number=int(number))
    return None


def holder(last: Claim | None, later: Iterable[Claim]) -> Claim:
    """Return the claim that counts. `last` is that of the last progress record, `later` are the claims after it."""
    held = last or UNCLAIMED
    for claim in later:
        # Another client may write a copy of an old claim, with its seal. An author's numbers only rise, so it is
        # ignored.
        own = claim.claimant == held.claimant
        if claim.number > held.number if own else claim.id_index == held.id_index:
            held = claim
    return held
