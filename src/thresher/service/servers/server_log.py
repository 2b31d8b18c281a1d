"""Logs which servers a process does not reach: at once, every minute while that lasts, and when it is over.

A repeated line says for how long the server was not reached, and how many attempts failed.
"""

import logging
import math

from thresher.service.health import ServerHealth
from thresher.service.servers.reach import Reach

logger = logging.getLogger(__name__)

REPEAT_SECONDS = 60.0


def is_due(health: ServerHealth, *, logged_at: float, now: float) -> bool:
    """Decide whether to log a server that is not up now. `logged_at`: when it was logged last."""
    known = health.failures > 0 or health.seconds > REPEAT_SECONDS
    return known and now - logged_at >= REPEAT_SECONDS


class ServerLog:
    """Logs the servers of one process. For one thread."""

    def __init__(self, reach: Reach, *, label: str, name: str) -> None:
        self._reach, self._label, self._name = reach, label, name
        # When each server was last logged, and the logged servers, whose return is to be logged.
        self._logged_at: dict[str, float] = {}
        self._missed: set[str] = set()

    def log_due(self, now: float, *, standby: bool) -> None:
        """Log the servers that are due. Without a failed attempt, a server is due after a minute without an answer."""
        for server, health in self._reach.health(standby=standby).items():
            if health.up:
                if server in self._missed:
                    self._missed.discard(server)
                    self._log(logging.INFO, "reaches its %s again", server)
            elif is_due(health, logged_at=self._logged_at.get(server, -math.inf), now=now):
                self._logged_at[server] = now
                fields = {"kind": health.kind, "attempts": health.failures}
                if server in self._missed:
                    seconds, text = round(health.seconds), health.text
                    what = "has not reached its %s for %d s, %d attempts failed: %s"
                    self._log(logging.WARNING, what, server, seconds, health.failures, text, **fields)
                else:
                    self._missed.add(server)
                    self._log(logging.WARNING, "does not reach its %s: %s", server, health.text, **fields)

    def _log(self, level: int, what: str, server: str, *values: object, **fields: object) -> None:
        message = f"the {self._label} %s {what}"
        extra = {self._label: self._name, "server": server, **fields}
        logger.log(level, message, self._name, server, *values, extra=extra)
