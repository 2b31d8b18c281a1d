"""The state of a competitor's leadership, and how each event changes it: a pure decision without clock or thread.

A group's coordinator or a lease's row grants leadership and withdraws it. A grant counts only up to a deadline, which
each confirmation moves. Past the deadline the leadership is over: a late confirmation begins another leadership, under
another id.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from uuid import UUID

from thresher.election.leadership import Acquired, Change, Fenced, Refreshed, Revoked

LATE = "its leadership was not confirmed in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenure:
    """The state of a leadership. With a leader id, this process leads until the deadline `until`."""

    granted: bool = False
    leader_id: UUID | None = None
    until: float = -math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Leadership was granted to this process, and is not confirmed yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """No other process can be granted leadership before `until`."""

    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """Leadership was taken away or given up. With a reason, another process may lead already."""

    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshAsked:
    """The caller asks for another leader id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Event = Granted | Confirmed | Withdrawn | RefreshAsked | Tick


def decide(tenure: Tenure, event: Event, *, now: float, draw: Callable[[], UUID]) -> tuple[Tenure, list[Change]]:
    """Return the state after an event, and the changes on the way. `draw` returns a new id at each call."""
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
                # An older confirmation may arrive after a newer one.
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
