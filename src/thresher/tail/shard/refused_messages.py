"""Counts and reports the messages in the WAL that are not published, because the outbox's function did not write them.

The count is exact; the log and the driver hear of it once a minute at most, however many there are.
"""

import logging
import time
from collections.abc import Callable

from thresher.db.lsn import lsn_text
from thresher.db.names import TableName
from thresher.spark.worker.shard import Shard
from thresher.tail.log_reader import RefusedMessage

logger = logging.getLogger(__name__)

COUNT, EVENT = "refused_messages", "messages refused"
_TELL_SECONDS = 60.0


class RefusedMessages:
    """The refused messages of one attempt. For one thread."""

    def __init__(self, shard: Shard, outbox: TableName, clock: Callable[[], float] = time.monotonic) -> None:
        self._shard, self._outbox, self._clock = shard, outbox, clock
        self._counted = self._told = 0
        self._next = 0.0

    def show(self, refused: int, last: RefusedMessage | None) -> None:
        """Count what was refused since the last call, and tell of it."""
        if refused != self._counted:
            self._shard.count(COUNT, refused - self._counted)
            self._counted = refused
        if last is None or refused == self._told or self._clock() < self._next:
            return
        self._next = self._clock() + _TELL_SECONDS
        logger.warning(
            "%d messages in the WAL were not published: not the function of %s wrote them; the last one at %s, in "
            "transaction %d: %s",
            refused - self._told, self._outbox, lsn_text(last.position), last.xid, last.why,
        )  # fmt: skip
        self._shard.event(EVENT, messages=refused - self._told, at=lsn_text(last.position), why=str(last.why))
        self._told = refused
