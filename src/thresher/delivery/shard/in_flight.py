"""The records of a shard that were sent and are not settled: how many, and of which keys.

A transaction's records count from when they are handed to the client until its settling has committed; those of one
that came to nothing, until the shard recovers. Any thread may ask: a client that hangs keeps nobody from it.
"""

import itertools
import json
import threading
from collections import deque
from collections.abc import Sequence

from thresher.observe.tally import Tally

# The note by which a shard tells its driver of keys in flight.
IN_FLIGHT_KEYS = "in_flight_keys"
MOST_KEYS = 1_000
# What one heartbeat may carry of them.
_MOST_LETTERS = 60_000


class InFlight:
    """Keys of the transactions that are not settled, in their order. Safe from any thread."""

    def __init__(self, tally: Tally, *, by_key: bool) -> None:
        """`by_key`: a transaction has one record of a key at most."""
        self._tally, self._by_key = tally, by_key
        self._lock = threading.Lock()
        self._transactions: deque[Sequence[bytes | None]] = deque()

    def sent(self, keys: Sequence[bytes | None]) -> None:
        """A transaction's records, with these keys, are handed to the client."""
        with self._lock:
            self._transactions.append(keys)
            self._show()

    def settled(self) -> None:
        """The oldest transaction is settled."""
        with self._lock:
            if self._transactions:
                self._transactions.popleft()
                self._show()

    def forget(self) -> None:
        """Nothing is in flight any more: the producer is another one."""
        with self._lock:
            if self._transactions:
                self._transactions.clear()
                self._show()

    def keys(self) -> list[str]:
        """Return keys of records in flight, each byte as a letter: a thousand of them, as far as they are short."""
        with self._lock:
            transactions = list(self._transactions)
        found: dict[bytes, str] = {}
        letters = 0
        for key in itertools.chain.from_iterable(transactions):
            if key is None or key in found:
                continue
            text = key.decode("latin-1")
            letters += len(json.dumps(text)) + 2
            if len(found) == MOST_KEYS or letters > _MOST_LETTERS:
                break
            found[key] = text
        return list(found.values())

    def _show(self) -> None:
        records = sum(map(len, self._transactions))
        self._tally.gauge("in_flight_rows", records)
        self._tally.gauge("in_flight_keys", records if self._by_key else 0)
