"""What a stream of the log hands over: some rows, and how far the log was read with them."""

from dataclasses import dataclass, field

from thresher.db.outbox_store import PendingRow
from thresher.tail.position import Position


@dataclass(slots=True, kw_only=True)
class Chunk:
    """Rows in the order of their positions. A transaction may begin in one chunk and end in a later one.

    Chunks without rows say that the log went on without any.
    """

    positions: list[Position] = field(default_factory=list)
    rows: list[PendingRow] = field(default_factory=list)
    # Of each row's transaction, in microseconds since 1970.
    commit_times: list[int] = field(default_factory=list)
    # Where the last commit ends all of whose rows were handed over, this chunk's included; 0 if there was none yet.
    ended: int = 0
    # A position before which no more commits come, as the server said outside of any transaction; all rows of commits
    # before it were handed over. None if it said nothing new since the last chunk.
    idle_at: int | None = None
    # About what keys, values and headers take.
    size: int = 0
