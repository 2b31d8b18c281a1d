"""A fake election: the test decides who leads, and when that ends."""

import math
import threading

from thresher.election.candidacy import Candidacy
from thresher.election.problem import ElectionMisused
from thresher.election.tenure import Confirmed, Granted, Withdrawn


class Ballot:
    """Chooses among the candidates that share it: the one that joined first leads."""

    def __init__(self) -> None:
        self._waiting: list[StagedLeadership] = []
        self._lock = threading.RLock()

    def join(self, competitor: "StagedLeadership") -> None:
        """Add a candidate."""
        with self._lock:
            self._waiting.append(competitor)
            self._choose()

    def leave(self, competitor: "StagedLeadership") -> None:
        """Remove a candidate."""
        with self._lock:
            if competitor in self._waiting:
                self._waiting.remove(competitor)
            self._choose()

    def _choose(self) -> None:
        if self._waiting and not self._waiting[0].granted:
            self._waiting[0].grant()


class StagedLeadership(Candidacy):
    """A candidate. Without a ballot, it leads when the test calls `grant`."""

    def __init__(self, ballot: Ballot | None = None) -> None:
        super().__init__()
        self._ballot = ballot
        self._started = False

    def start(self) -> None:
        """Begin to compete."""
        if self._started:
            raise ElectionMisused("a leadership can be started only once: make another")
        self._started = True
        if self._ballot is not None:
            self._ballot.join(self)

    def resign(self) -> None:
        """Go to the end of the queue."""
        self.handle(Withdrawn())
        if self._ballot is not None:
            self._ballot.leave(self)
            self._ballot.join(self)

    def stop(self) -> None:
        """Leave."""
        self.close()
        if self._ballot is not None:
            self._ballot.leave(self)

    def grant(self, seconds: float = math.inf) -> None:
        """Let this candidate lead for `seconds`."""
        self.handle(Granted())
        self.handle(Confirmed(until=self.now() + seconds))

    def revoke(self) -> None:
        """End its leadership as after an orderly withdrawal."""
        self.handle(Withdrawn())

    def fence(self, reason: str = "the test said so") -> None:
        """End its leadership as if another candidate already led."""
        self.handle(Withdrawn(reason=reason))
