"""Among how many ids a row of the shard lies."""

from collections.abc import Sequence
from itertools import pairwise

# A window should hold a little less than is wanted: what it holds beyond that is read once more.
_AIM = 0.95
# Where there were few rows, it is not known whether there are as few behind them.
_MOST_GROWTH = 4.0
_PARTS = 8


class Spread:
    """How many ids to look among for so many rows: other shards' rows and those that were rolled back have some too."""

    def __init__(self) -> None:
        self._ids_per_row = 1.0

    def of(self, rows: int) -> int:
        """Return among how many ids there should be so many rows."""
        return max(1, int(_AIM * rows * self._ids_per_row))

    def begin(self, ids: Sequence[int]) -> None:
        """Rows with these ids, which ascend, are the last that are known. There may be gaps among them: what counts is
        where they lie closest."""
        places = range(0, len(ids), max(1, len(ids) // _PARTS))
        widths = [(ids[end] - ids[start]) / (end - start) for start, end in pairwise(places)]
        self._ids_per_row = min(widths, default=1.0)

    def learn(self, rows: int, ids: int) -> None:
        """So many rows lay among so many ids."""
        self._ids_per_row = max(1.0, min(ids / rows, _MOST_GROWTH * self._ids_per_row))
