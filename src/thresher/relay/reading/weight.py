"""About what a row takes, by those that were read lately."""

_FORGETTING = 0.75


class Weight:
    """Learns at once that rows are large, and slowly that they are not."""

    def __init__(self) -> None:
        self._row_bytes = 0.0

    def learn(self, size: int, rows: int) -> None:
        """Take in what some rows took together."""
        self._row_bytes = max(size / rows, _FORGETTING * self._row_bytes)

    def of(self, rows: int) -> float:
        """Return what so many rows may take, in bytes."""
        return self._row_bytes * rows
