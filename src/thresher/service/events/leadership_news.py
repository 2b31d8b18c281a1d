"""What is told of changes of leadership: to the log when they are decided, to event handlers when they have happened.

A leadership that is over is announced when its last row was relayed. One whose workload was superseded is announced as
fenced, also where the election gave it up in good order.
"""

import logging

from thresher.election.leadership import Acquired, Change, Fenced, Refreshed, Revoked
from thresher.service.events.announcer import Announcer
from thresher.service.events.event import Event, LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked

logger = logging.getLogger(__name__)


class LeadershipNews:
    """Tells of one process. For the service's own thread."""

    def __init__(self, name: str, announcer: Announcer) -> None:
        self._name, self._announcer = name, announcer
        # The leader that the log has named since this process led last.
        self._named: str | None = None
        # Why the last leadership was superseded, if it was.
        self.superseded: str | None = None

    def decided(self, change: Change) -> None:
        """The election has decided."""
        match change:
            case Acquired(leader_id=leader_id):
                self._named = None
                logger.info("leadership of %s acquired, as %s", self._name, leader_id)
            case Refreshed(leader_id=leader_id):
                logger.info("leadership of %s goes on, as %s", self._name, leader_id)
            case Revoked():
                logger.info("leadership of %s given up", self._name)
            case Fenced(reason=reason):
                logger.warning("leadership of %s lost: %s", self._name, reason)

    def standing_by(self, leader: str | None) -> None:
        """It does not lead; `leader` says who does, None where that is not known. Told once for each leader."""
        if leader not in {None, self._named}:
            self._named = leader
            logger.info("standing by for %s: %s leads", self._name, leader, extra={"leader": leader})

    def followed(self, change: Change) -> None:
        """The change has taken effect: nothing of a leadership that is over is left."""
        match change:
            case Acquired(leader_id=leader_id):
                self.superseded = None
                self.announce(LeaderAcquired(leader_id=leader_id))
            case Refreshed(leader_id=leader_id):
                self.announce(LeaderRefreshed(leader_id=leader_id))
            case Revoked():
                self.announce(LeaderRevoked() if self.superseded is None else LeaderFenced(reason=self.superseded))
            case Fenced(reason=reason):
                self.announce(LeaderFenced(reason=reason))

    def announce(self, event: Event) -> None:
        """Have event handlers told, and return at once."""
        self._announcer.announce(event)
