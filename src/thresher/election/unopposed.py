"""No election: every process that starts leads, and its predecessor finds another term. For a single process."""

import math

from thresher.election.candidacy import Candidacy
from thresher.election.problem import ElectionMisused
from thresher.election.tenure import Confirmed, Granted, Withdrawn


class Unopposed(Candidacy):
    """Leads from `start` to `stop`."""

    def __init__(self) -> None:
        super().__init__()
        self._started = False

    def start(self) -> None:
        """Begin to lead."""
        if self._started:
            raise ElectionMisused("a leadership is started once: make another")
        self._started = True
        self._lead()

    def resign(self) -> None:
        """Give up the leadership, and lead again under another id: there is no other process."""
        if self.handle(Withdrawn()):
            self._lead()

    def stop(self) -> None:
        """End the leadership."""
        self.close()

    def _lead(self) -> None:
        self.handle(Granted())
        self.handle(Confirmed(until=math.inf))
