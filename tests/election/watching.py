"""Watches competitors: their changes, and the times at which they believed to lead."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from tests.processes import eventually
from thresher.core.errors import ThresherError
from thresher.election.leadership import Acquired, Change, Fenced, Leadership, Refreshed, Revoked

# Seen: 0.1 s without a member to wait for.
SOON_SECONDS = 30.0
# Seen: 6.3 s, the session time-out of a member that died.
SESSION_SECONDS = 60.0


@dataclass(slots=True, kw_only=True)
class Claim:
    """A time in which a competitor believed to lead: from after its first look to before its last."""

    leader_id: str
    since: float
    until: float


@dataclass(slots=True)
class Claims:
    """All claims of one competitor, on the monotonic clock, which all processes of a machine share."""

    found: list[Claim] = field(default_factory=list)

    def look(self, leadership: Leadership) -> None:
        """Ask once for the leader id, and note the claim."""
        before = time.monotonic()
        leader_id = leadership.leader_id
        self.add(None if leader_id is None else str(leader_id), before, time.monotonic())

    def add(self, leader_id: str | None, before: float, after: float) -> None:
        if leader_id is None:
            return
        if self.found and self.found[-1].leader_id == leader_id:
            self.found[-1].until = before
        else:
            self.found.append(Claim(leader_id=leader_id, since=after, until=after))


def overlaps(parties: Iterable[Claims]) -> list[tuple[Claim, Claim]]:
    """Return the pairs of claims of two competitors that overlap."""
    all_claims = [(party, claim) for party, each in enumerate(parties) for claim in each.found]
    return [
        (one, other)
        for place, (party, one) in enumerate(all_claims)
        for rival, other in all_claims[place + 1 :]
        if party != rival and max(one.since, other.since) < min(one.until, other.until)
    ]


class Watched:
    """A competitor in the test process, with a thread that waits for its changes and one that asks for its id."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self.changes: list[Change] = []
        self.times: list[float] = []
        self.claims = Claims()
        self.error: ThresherError | None = None
        self._over = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._wait, self._look)]

    def __enter__(self) -> Self:
        self.leadership.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leadership.stop()
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        well_formed(self.changes)

    def _wait(self) -> None:
        while not self._over.is_set():
            try:
                change = self.leadership.wait(0.1)
            except ThresherError as error:
                self.error = error
                return
            if change is not None:
                # The time first: a thread that sees the change must find its time too.
                self.times.append(time.monotonic())
                self.changes.append(change)

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.claims.look(self.leadership)

    @property
    def leads(self) -> bool:
        return self.leadership.leader_id is not None

    def ids(self) -> list[UUID]:
        return [change.leader_id for change in self.changes if isinstance(change, Acquired | Refreshed)]

    def until(self, condition: Callable[["Watched"], object], seconds: float = SOON_SECONDS) -> None:
        eventually(lambda: condition(self), seconds, lambda: f"{self.changes} {self.error}")

    def leading(self, seconds: float = SOON_SECONDS) -> UUID:
        """Wait until the competitor leads, and return its leader id."""
        self.until(lambda it: it.leads and it.changes and isinstance(it.changes[-1], Acquired | Refreshed), seconds)
        return self.ids()[-1]


def well_formed(changes: Iterable[Change]) -> None:
    """Check that changes form complete leaderships, with ids that never repeat."""
    leads, ids = False, []
    for change in changes:
        match change:
            case Acquired(leader_id=leader_id):
                assert not leads, changes
                leads = True
                ids.append(leader_id)
            case Refreshed(leader_id=leader_id):
                assert leads, changes
                ids.append(leader_id)
            case Revoked() | Fenced():
                assert leads, changes
                leads = False
    assert len(set(ids)) == len(ids), changes
