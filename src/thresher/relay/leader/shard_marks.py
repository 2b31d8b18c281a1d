"""The id with which each shard marks rows, by its events: for the log and /status. At-least-once only.

An id in the column `leader_id` begins with the first half of the term, which is the leader's id, followed by the
shard's number. So a mark of any age can be traced to its leader.
"""

import logging
from collections.abc import Mapping
from typing import Any

from thresher.service.events.event import REFRESHED

logger = logging.getLogger(__name__)


class ShardMarks:
    """Takes events in one thread; may be read from any other."""

    def __init__(self, relay: str) -> None:
        self._relay = relay
        # By shard. Replaced as a whole, for readers in other threads.
        self.leader_ids: Mapping[int, str] = {}

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Handle an event of a shard."""
        if event not in {"marking", REFRESHED}:
            return
        told = {"relay": self._relay, "shard": shard, **fields}
        if shard not in self.leader_ids:
            logger.info("shard %d marks rows as %s", shard, fields["leader_id"], extra=told)
        else:
            logger.debug("shard %d marks rows anew, as %s", shard, fields["leader_id"], extra=told)
        self.leader_ids = {**self.leader_ids, shard: str(fields["leader_id"])}

    def forget(self) -> None:
        """Forget all ids: another term begins."""
        self.leader_ids = {}
