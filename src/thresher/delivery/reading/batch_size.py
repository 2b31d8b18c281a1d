"""How large the next batch is: small at first, larger after quick ones, smaller after a slow one.

A broker that cannot take many records gets few. Rows that are large make batches of fewer rows.
"""

_FIRST_ROWS, _FIRST_BYTES = 1_000, 1_000_000
_LEAST_ROWS, _LEAST_BYTES = 10, 100_000
# A window aims at a little less than is wanted, and is full nevertheless.
_FULL = 0.75
# The mean size of a row rises at once, and falls slowly.
_FORGETTING = 0.75


class RowSize:
    """The mean size of a row, by those that were read lately."""

    def __init__(self) -> None:
        self._bytes = 0.0

    def learn(self, size: int, rows: int) -> None:
        """Take in how many bytes so many rows had."""
        self._bytes = max(size / rows, _FORGETTING * self._bytes)

    def of(self, rows: int) -> float:
        """Return how many bytes so many rows may have."""
        return self._bytes * rows


class BatchSize:
    """Learns from batches how large the next may be. Looks at no clock."""

    def __init__(self, *, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self.first_rows = _FIRST_ROWS
        self.rows = min(_FIRST_ROWS, most_rows)
        self.bytes = min(_FIRST_BYTES, most_bytes)
        self.row_size = RowSize()

    def learn(self, rows: int, seconds: float, most_seconds: float) -> None:
        """Take in how long a batch took: a slow one halves the next, a quick and full one doubles it."""
        if seconds > most_seconds:
            self.rows = min(self._most_rows, max(_LEAST_ROWS, min(self.rows, rows) // 2))
            self.bytes = max(_LEAST_BYTES, self.bytes // 2)
        elif seconds < most_seconds / 2:
            more = 4 if seconds < most_seconds / 8 else 2
            self.bytes = min(self._most_bytes, self.bytes * more)
            if rows >= _FULL * self.rows:
                self.rows = min(self._most_rows, self.rows * more)
