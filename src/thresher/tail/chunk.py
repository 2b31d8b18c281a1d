"""A chunk of the WAL: some rows, and how far the WAL was read with them."""

from dataclasses import dataclass, field

from thresher.db.outbox_store import PendingRow
from thresher.tail.position import Position


@dataclass(slots=True, kw_only=True)
class Chunk:
    """Rows in the order of their positions. A transaction may begin in one chunk and end in a later one.

    A chunk without rows only says how far the WAL was read.
    """

    positions: list[Position] = field(default_factory=list)
    rows: list[PendingRow] = field(default_factory=list)
    # Commit time of each row's transaction, in microseconds since 1970.
    commit_times: list[int] = field(default_factory=list)
    # End of the last commit whose rows were all handed over, including those of this chunk; 0 before the first.
    ended: int = 0
    # A position that the server reported between two transactions: all rows of commits before it were handed over, and
    # no more will come. None if it reported no new position since the last chunk.
    idle_at: int | None = None
    # About the bytes of keys, values and headers.
    size: int = 0
