"""The position of a change in Postgres' WAL, and the order of changes: that of their commits.

A change's own LSN is not enough, since the changes of concurrent transactions interleave in the WAL. Changes that one
COPY wrote may share an LSN: `place` counts from 0 among the changes of a transaction with the same LSN. A change has
the same position each time the WAL is read, whatever else the publication sends.
"""

from typing import NamedTuple

from thresher.db.lsn import lsn_text


class Position(NamedTuple):
    """A change of a committed transaction. Positions compare in the order in which changes are published."""

    # LSN of the commit record.
    commit: int
    change: int
    place: int

    def __str__(self) -> str:
        return f"{lsn_text(self.commit)}:{lsn_text(self.change)}:{self.place}"
