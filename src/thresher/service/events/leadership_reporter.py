"""Reports changes of leadership: to the log when the election decides, to event handlers when they have taken effect.

The end of a leadership is announced after its last row was relayed. If its workload was superseded, the event is
`LeaderFenced`, even if the election revoked it gracefully.
"""

import logging

from thresher.election.leadership import Acquired, Change, Fenced, Refreshed, Revoked
from thresher.service.events.announcer import Announcer
from thresher.service.events.event import Event, LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked

logger = logging.getLogger(__name__)


class LeadershipReporter:
    """Reports for one process. For the service's own thread."""

    def __init__(self, name: str, announcer: Announcer) -> None:
        self._name, self._announcer = name, announcer
        # The leader that was logged last, since this process led.
        self._named: str | None = None
        # Why the last leadership was superseded, if it was.
        self.superseded: str | None = None

    def decided(self, change: Change) -> None:
        """Log a change that the election has decided."""
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
        """Log that this process stands by, once for each `leader`. None: the leader is not known."""
        if leader not in {None, self._named}:
            self._named = leader
            logger.info("standing by for %s: %s leads", self._name, leader, extra={"leader": leader})

    def followed(self, change: Change) -> None:
        """Announce a change that has taken effect: nothing of an ended leadership is left running."""
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
        """Queue an event for the handlers, and return at once."""
        self._announcer.announce(event)
