"""How long to wait after a commit before the next transaction begins.

A broker answers a commit before it has ended the transaction on all its partitions. Who begins the next one sooner is
told to come back, which the client does after 20 ms, again and again. How long it takes depends on the machine, and on
how many partitions there were: so it is learnt from what happens to transactions of few rows.
"""

_LEAST_SECONDS, _MOST_SECONDS = 0.0015, 0.008
# Many rows are on many partitions.
_FEW, _MANY_SECONDS = 10, 0.005
# What a flush of few rows takes when the client had to come back, and how far behind a commit that may happen.
_CAME_BACK_SECONDS, _CLOSE_SECONDS = 0.018, 0.04


class Breath:
    """Learns how long to wait: longer after each time that it was too short, and ever so slowly less."""

    def __init__(self) -> None:
        self._seconds = 0.003

    def after(self, rows: int) -> float:
        """Return how long to wait behind the commit of a transaction of so many rows."""
        return self._seconds if rows < _FEW else max(_MANY_SECONDS, self._seconds)

    def learn(self, rows: int, behind_seconds: float, flushed_seconds: float) -> None:
        """Take in how a transaction went that began so long after the last commit."""
        if rows >= _FEW or behind_seconds > _CLOSE_SECONDS:
            return
        if flushed_seconds >= _CAME_BACK_SECONDS:
            self._seconds = min(_MOST_SECONDS, 1.5 * self._seconds)
        else:
            self._seconds = max(_LEAST_SECONDS, 0.99 * self._seconds)
