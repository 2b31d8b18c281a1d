"""Under which id each shard marks rows, as its events say: for the log and /status. At least once only.

An id in the column `leader_id` begins with the first half of its leader's own id, which is the term; then comes the
shard's number. So a mark of any age can be traced to its leader.
"""

import logging
from collections.abc import Mapping
from typing import Any

from thresher.service.events.event import REFRESHED

logger = logging.getLogger(__name__)


class ShardMarks:
    """Takes events in one thread; may be looked at from any other."""

    def __init__(self, relay: str) -> None:
        self._relay = relay
        # By shard; replaced as a whole.
        self.leader_ids: Mapping[int, str] = {}

    def observe(self, shard: int, event: str, fields: Mapping[str, Any]) -> None:
        """Take in an event of a shard."""
        if event not in {"marking", REFRESHED}:
            return
        told = {"relay": self._relay, "shard": shard, **fields}
        if shard not in self.leader_ids:
            logger.info("shard %d marks rows as %s", shard, fields["leader_id"], extra=told)
        else:
            logger.debug("shard %d marks rows anew, as %s", shard, fields["leader_id"], extra=told)
        self.leader_ids = {**self.leader_ids, shard: str(fields["leader_id"])}

    def forget(self) -> None:
        """Another term begins."""
        self.leader_ids = {}
