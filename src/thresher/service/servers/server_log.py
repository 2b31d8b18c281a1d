"""Says in the log which servers a process does not reach: at once, once a minute while that lasts, and when it is over.

A repeated line says for how long, and how many attempts have failed.
"""

import logging
import math

from thresher.service.health import ServerHealth
from thresher.service.servers.reach import Reach

logger = logging.getLogger(__name__)

REPEAT_SECONDS = 60.0


def is_due(health: ServerHealth, *, told: float, now: float) -> bool:
    """Decide whether a server that is not up is complained about now. `told`: when it was last."""
    known = health.failures > 0 or health.seconds > REPEAT_SECONDS
    return known and now - told >= REPEAT_SECONDS


class ServerLog:
    """The lines of one process. For one thread."""

    def __init__(self, reach: Reach, *, label: str, name: str) -> None:
        self._reach, self._label, self._name = reach, label, name
        # When each server was last complained about, and the servers whose return is to be told.
        self._told: dict[str, float] = {}
        self._missed: set[str] = set()

    def tell(self, now: float, *, standby: bool) -> None:
        """Log what is due. A server that nobody has tried to reach yet is not complained about."""
        for server, health in self._reach.health(standby=standby).items():
            if health.up:
                if server in self._missed:
                    self._missed.discard(server)
                    self._log(logging.INFO, "reaches its %s again", server)
            elif is_due(health, told=self._told.get(server, -math.inf), now=now):
                self._told[server] = now
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
