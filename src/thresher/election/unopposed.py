"""No election: whoever starts leads, and whoever was before finds its term gone. For one process alone."""

import math

from thresher.election.candidacy import Candidacy
from thresher.election.problem import ElectionMisused
from thresher.election.tenure import Confirmed, Granted, Withdrawn


class Unopposed(Candidacy):
    """Leads from start to stop."""

    def __init__(self) -> None:
        super().__init__()
        self._started = False

    def start(self) -> None:
        """Lead."""
        if self._started:
            raise ElectionMisused("a leadership is started once: make another")
        self._started = True
        self._lead()

    def resign(self) -> None:
        """Give up, and lead again: there is nobody else."""
        if self.tell(Withdrawn()):
            self._lead()

    def stop(self) -> None:
        """Lead no more."""
        self.close()

    def _lead(self) -> None:
        self.tell(Granted())
        self.tell(Confirmed(until=math.inf))
