"""The events of a service: changes of leadership, steps that hang, and readings of throughput."""

from dataclasses import dataclass
from uuid import UUID

# The event by which a shard reports that it has started over under another id, in the field `leader_id`.
REFRESHED = "refreshed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAcquired:
    """This process leads from now on, under this id, and begins to relay."""

    leader_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRefreshed:
    """This process still leads, under another id: as a whole after a restore of its database, or for one shard.

    The id of a shard is the one that its rows are marked with.
    """

    leader_id: UUID
    shard: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRevoked:
    """This process leads no more. Its last row was relayed before this event. Another process may lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderFenced:
    """This process leads no more and relays nothing. Another process may lead already.

    The process could not confirm its leadership in time, or was superseded.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterRead:
    """The rows relayed in all, and per second: since the last reading (`rate`) and in this leadership (`mean_rate`)."""

    relayed: int
    rate: float
    mean_rate: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepHangs:
    """A step of a shard has not ended for `seconds`. Announced again every minute while it lasts."""

    shard: int
    step: str
    seconds: float
    # The reason, if it is known; for a lock, its holder.
    why: str | None


Event = LeaderAcquired | LeaderRefreshed | LeaderRevoked | LeaderFenced | MeterRead | StepHangs
