"""Adapts the size of batches: small at first, larger after fast batches, smaller after a slow one.

So a slow broker gets few records at a time, and batches of large rows have fewer rows.
"""

_FIRST_ROWS, _FIRST_BYTES = 1_000, 1_000_000
_MIN_ROWS, _MIN_BYTES = 10, 100_000
# A batch counts as full from this share on: a read by a window of ids aims at a little less than the wanted rows.
_FULL = 0.75
# The mean size of a row rises at once, and falls by at most this factor per read.
_FORGETTING = 0.75


class RowSize:
    """The mean size of the rows that were read lately."""

    def __init__(self) -> None:
        self._bytes = 0.0

    def learn(self, size: int, rows: int) -> None:
        """Note that `rows` rows had `size` bytes."""
        self._bytes = max(size / rows, _FORGETTING * self._bytes)

    def of(self, rows: int) -> float:
        """Return an estimate of the bytes of `rows` rows."""
        return self._bytes * rows


class BatchSize:
    """The size of the next batch, by the time that earlier ones took. The caller measures the time."""

    def __init__(self, *, most_rows: int, most_bytes: int) -> None:
        self._most_rows, self._most_bytes = most_rows, most_bytes
        self.first_rows = _FIRST_ROWS
        self.rows = min(_FIRST_ROWS, most_rows)
        self.bytes = min(_FIRST_BYTES, most_bytes)
        self.row_size = RowSize()

    def learn(self, rows: int, seconds: float, most_seconds: float) -> None:
        """Note how long a batch took: a slow one halves the next, a fast and full one makes it 2 or 4 times larger."""
        if seconds > most_seconds:
            self.rows = min(self._most_rows, max(_MIN_ROWS, min(self.rows, rows) // 2))
            self.bytes = max(_MIN_BYTES, self.bytes // 2)
        elif seconds < most_seconds / 2:
            more = 4 if seconds < most_seconds / 8 else 2
            self.bytes = min(self._most_bytes, self.bytes * more)
            if rows >= _FULL * self.rows:
                self.rows = min(self._most_rows, self.rows * more)
