"""The events of a service: changes of its leadership, steps that hang, and now and then how much it has relayed."""

from dataclasses import dataclass
from uuid import UUID

# The event by which a shard tells that it has begun anew under another id, its field `leader_id`.
REFRESHED = "refreshed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAcquired:
    """This process leads, under that id, and begins to relay."""

    leader_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRefreshed:
    """It leads on, under another id: as a whole after a restore of its database, or one shard that began anew.

    The id of a shard is the one that rows are marked with.
    """

    leader_id: UUID
    shard: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRevoked:
    """It leads no more, and its last row was relayed before this: another one may lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderFenced:
    """It leads no more and relays nothing, and another one may lead already.

    It could not confirm its leadership in time, or was superseded.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterRead:
    """How much was relayed: in all, and per second since the last reading and over all time as a leader."""

    relayed: int
    rate: float
    mean_rate: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHangs:
    """A step of a shard has not ended for so long. Told again every minute while it lasts."""

    shard: int
    step: str
    seconds: float
    # For a lock, who holds it.
    why: str | None


Event = LeaderAcquired | LeaderRefreshed | LeaderRevoked | LeaderFenced | MeterRead | StepHangs
