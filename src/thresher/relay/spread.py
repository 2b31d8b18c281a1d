"""Among how many ids a row of the shard lies."""

# A window should hold a little less than is wanted: what it holds beyond that is read once more.
_AIM = 0.95
# Where nothing is found, it is not known how far the next row is.
_MOST_GROWTH = 4.0


class Spread:
    """How many ids to look among for so many rows: other shards' rows and those that were rolled back have some too."""

    def __init__(self) -> None:
        self._ids_per_row = 1.0

    def of(self, rows: int) -> int:
        """Return among how many ids there should be so many rows."""
        return max(1, int(_AIM * rows * self._ids_per_row))

    def begin(self, rows: int, ids: int) -> None:
        """Somewhere so many rows lay among so many ids."""
        self._ids_per_row = max(1.0, ids / rows)

    def learn(self, rows: int, ids: int) -> None:
        """So many rows lay among the last ids that were looked at, or at least so many."""
        most = _MOST_GROWTH * self._ids_per_row
        self._ids_per_row = max(1.0, min(most, ids / rows)) if rows else most
