"""Counts the records in flight of a shard: sent and not settled. Lists their keys.

A transaction's records are in flight from when they are handed to the client until the settling has committed; those of
a failed transaction, until the shard recovers. Any thread may ask, even while the client hangs.
"""

import itertools
import json
import threading
from collections import deque
from collections.abc import Sequence

from thresher.observe.figure_sink import FigureSink

# The name under which a shard sends keys in flight to its driver.
IN_FLIGHT_KEYS = "in_flight_keys"
MOST_KEYS = 1_000
# The part of a heartbeat that keys may take, in characters of JSON.
_MAX_CHARACTERS = 60_000


class InFlight:
    """The keys of each transaction that is not settled, oldest first. Safe from any thread."""

    def __init__(self, figures: FigureSink, *, by_key: bool) -> None:
        """`by_key`: a transaction has at most one record of a key, so that records count as keys."""
        self._figures, self._by_key = figures, by_key
        self._lock = threading.Lock()
        self._transactions: deque[Sequence[bytes | None]] = deque()

    def sent(self, keys: Sequence[bytes | None]) -> None:
        """Note that a transaction's records, with these keys, are handed to the client."""
        with self._lock:
            self._transactions.append(keys)
            self._show()

    def settled(self) -> None:
        """Note that the oldest transaction is settled."""
        with self._lock:
            if self._transactions:
                self._transactions.popleft()
                self._show()

    def forget(self) -> None:
        """Note that nothing is in flight any more: a new producer begins."""
        with self._lock:
            if self._transactions:
                self._transactions.clear()
                self._show()

    def keys(self) -> list[str]:
        """Return up to a thousand keys of records in flight, as Latin-1 text; fewer if keys are long."""
        with self._lock:
            transactions = list(self._transactions)
        found: dict[bytes, str] = {}
        characters = 0
        for key in itertools.chain.from_iterable(transactions):
            if key is None or key in found:
                continue
            text = key.decode("latin-1")
            characters += len(json.dumps(text)) + 2
            if len(found) == MOST_KEYS or characters > _MAX_CHARACTERS:
                break
            found[key] = text
        return list(found.values())

    def _show(self) -> None:
        records = sum(map(len, self._transactions))
        self._figures.gauge("in_flight_rows", records)
        self._figures.gauge("in_flight_keys", records if self._by_key else 0)
