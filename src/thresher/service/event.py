"""The events of a service: changes of its leadership, and now and then how much it has relayed."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAcquired:
    """This process leads, under that id, and begins to relay."""

    leader_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRefreshed:
    """It leads on, under another id."""

    leader_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRevoked:
    """It leads no more, and relays nothing: another one may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderFenced:
    """It leads no more, and another one may already: it could not confirm its leadership in time, or was superseded."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterRead:
    """How much was relayed: in all, and per second since the last reading and over all time as a leader."""

    relayed: int
    rate: float
    mean_rate: float
    seconds: float


Event = LeaderAcquired | LeaderRefreshed | LeaderRevoked | LeaderFenced | MeterRead
