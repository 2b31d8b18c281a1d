"""When a producer opens its transactions: not too soon after the last one, and if possible before rows arrive.

A partition's first record in a transaction is slow: the client adds the partition to the transaction, and the broker
verifies that. For the progress partition both are done before rows arrive, by an empty record that no reader takes for
progress. A transaction without rows is ended soon: an idle producer has none open, and the broker's time-out is short.
"""

import time
from collections.abc import Callable
from typing import Any

from thresher.kafka.transaction.pacing import TransactionPacing
from thresher.kafka.transactional import TransactionalProducer

# An open transaction without rows is ended after this time, which is far below the broker's transaction time-out.
_IDLE_SECONDS = 2.0
_SLICE_SECONDS, _LONGEST_OPENING_SECONDS = 0.001, 0.05


class TransactionOpening:
    """Opens and ends the transactions of one attempt at a shard. For the task's own thread."""

    def __init__(
        self,
        client: Callable[[], TransactionalProducer],
        opener: Any,
        *,
        ahead: bool,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`ahead`: whether a transaction may be opened before its rows arrive. Not if a transform may delay them."""
        self._client, self._opener, self._may = client, opener, ahead
        self._monotonic, self._sleep = monotonic, sleep
        self._pacing = TransactionPacing()
        self._open = self._opened = False
        self._begun = self._ended = self._carried = 0.0
        self._rows = 0

    def forget(self) -> None:
        """Forget an open transaction: the producer was replaced, which has ended it."""
        self._open = False

    def ahead(self, wanted: Callable[[], bool]) -> None:
        """Open a transaction before its rows, if rows have arrived recently. Returns as soon as rows are `wanted`."""
        self.tend()
        if self._open or not self._may or self._monotonic() - self._carried > _IDLE_SECONDS:
            return
        while (left := self._rest()) > 0:
            if wanted():
                return
            self._sleep(min(left, _SLICE_SECONDS))
        self._begin()
        while not wanted() and (took := self._monotonic() - self._begun) < _LONGEST_OPENING_SECONDS:
            if self._client().await_sent(_SLICE_SECONDS):
                self._opened = True
                self._pacing.learn(1, self._begun - self._ended, took)
                return

    def begin(self) -> None:
        """Open a transaction for rows that have arrived, if none is open."""
        self.tend()
        if not self._open:
            self._sleep(max(0.0, self._rest()))
            self._begin()

    def flushed(self, rows: int) -> None:
        """Learn from a transaction with this many rows, all of which the broker has answered for."""
        if not self._opened:
            self._pacing.learn(rows, self._begun - self._ended, self._monotonic() - self._begun)

    def committed(self, rows: int) -> None:
        """Record that the transaction was committed with this many rows."""
        self._open, self._rows = False, rows
        self._ended = self._carried = self._monotonic()

    def tend(self) -> None:
        """End an open transaction that has waited for rows for too long."""
        if self._open and self._monotonic() - self._begun > _IDLE_SECONDS:
            self.end()

    def end(self) -> None:
        """End an open transaction without rows, if there is one."""
        if self._open:
            self._client().commit()
            self._open, self._ended = False, self._monotonic()

    def _rest(self) -> float:
        return self._ended + self._pacing.after(self._rows) - self._monotonic()

    def _begin(self) -> None:
        self._begun, self._opened, self._open = self._monotonic(), False, True
        self._client().begin()
        self._client().produce([(0, self._opener)])
