"""The position of a change in Postgres' log, and the order of changes: that of their commits.

The position of a change alone says nothing across transactions: their changes interleave in the log. Changes that one
COPY wrote may share a position; the place counts them, from 0, among the changes of equal position in the transaction.
A position is the same whenever the log is read again, whatever else a publication sends.
"""

from typing import NamedTuple

from thresher.db.lsn import lsn_text


class Position(NamedTuple):
    """A change of a committed transaction. Positions compare in the order in which changes are published."""

    # Where the commit's record begins.
    commit: int
    change: int
    place: int

    def __str__(self) -> str:
        return f"{lsn_text(self.commit)}:{lsn_text(self.change)}:{self.place}"
