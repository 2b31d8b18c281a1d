"""How long to wait after a commit before the next transaction begins.

A broker answers a commit before it has ended the transaction on all its partitions. A transaction that begins sooner is
refused, and the client retries every 20 ms. The time needed depends on the machine and on the number of partitions, so
it is learnt from transactions of few rows. A wrong wait costs time, never a record.
"""

import time

# The wait before a transaction without records. If its offsets are refused, the client retries only after two seconds.
_OFFSETS_ALONE_SECONDS = 0.02
_LEAST_SECONDS, _MOST_SECONDS = 0.0015, 0.008
# From this many rows on a transaction counts as large: it has many partitions, and a longer wait after it.
_FEW, _MANY_SECONDS = 10, 0.005
# A flush of few rows that takes this long was refused first; and how soon after a commit that can happen.
_REFUSED_SECONDS, _CLOSE_SECONDS = 0.018, 0.04


class TransactionPacing:
    """Learns the wait: half as long again after each refusal, and one percent shorter after each success."""

    def __init__(self) -> None:
        self._seconds = 0.003

    def after(self, rows: int) -> float:
        """Return the wait after the commit of a transaction with this many rows."""
        return self._seconds if rows < _FEW else max(_MANY_SECONDS, self._seconds)

    def learn(self, rows: int, behind_seconds: float, flushed_seconds: float) -> None:
        """Learn from a transaction: how long after the last commit it began, and how long its flush took."""
        if rows >= _FEW or behind_seconds > _CLOSE_SECONDS:
            return
        if flushed_seconds >= _REFUSED_SECONDS:
            self._seconds = min(_MOST_SECONDS, 1.5 * self._seconds)
        else:
            self._seconds = max(_LEAST_SECONDS, 0.99 * self._seconds)


def await_ended(committed_at: float) -> None:
    """Wait, before a transaction with offsets only, until the broker has ended the one committed at `committed_at`."""
    time.sleep(max(0.0, committed_at + _OFFSETS_ALONE_SECONDS - time.monotonic()))
