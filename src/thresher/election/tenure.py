"""The state of a competitor's own leadership, and what each event makes of it: decisions without clock or thread.

Somebody else grants leadership (a group's coordinator, a row) and withdraws it; what was granted counts only up to a
deadline, which every confirmation moves. Past the deadline it is over, whatever comes: a confirmation that comes late
begins another leadership, under another id.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from thresher.election.leadership import Acquired, Change, Fenced, Refreshed, Revoked

LATE = "its leadership was not confirmed in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """How it stands. With a leader id, it is one until the deadline."""

    granted: bool = False
    leader_id: UUID | None = None
    until: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Leadership was given to us, and is yet to be confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """Nobody else can have been given it before then."""

    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """It was taken from us, or given back; with a reason, another one may have it already."""

    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshAsked:
    """Another id is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Event = Granted | Confirmed | Withdrawn | RefreshAsked | Tick


def decide(tenure: Tenure, event: Event, *, now: float, draw: Callable[[], UUID]) -> tuple[Tenure, list[Change]]:
    """Return how it stands after an event, and what has changed on the way. `draw` gives ids that were never given."""
    changes: list[Change] = []
    if tenure.leader_id is not None and now >= tenure.until:
        tenure = replace(tenure, leader_id=None)
        changes.append(Fenced(reason=LATE))
    match event:
        case Granted():
            tenure = replace(tenure, granted=True)
        case Confirmed(until=until) if tenure.granted and until > now:
            if tenure.leader_id is None:
                fresh = draw()
                tenure = replace(tenure, leader_id=fresh, until=until)
                changes.append(Acquired(leader_id=fresh))
            else:
                # An older confirmation may come behind a newer one.
                tenure = replace(tenure, until=max(tenure.until, until))
        case Withdrawn(reason=reason):
            if tenure.leader_id is not None:
                changes.append(Revoked() if reason is None else Fenced(reason=reason))
            tenure = Tenure()
        case RefreshAsked() if tenure.leader_id is not None:
            another = draw()
            tenure = replace(tenure, leader_id=another)
            changes.append(Refreshed(leader_id=another))
        case _:
            pass
    return tenure, changes
