"""Topics, keys and rows that reads leave out, and the sweeps that read rows whose wait is over.

1. A hold lasts 2 s, or until `unhold`. Rows that are known to wait behind another row are held for longer.
2. Rows of held topics whose wait is over are read by **sweeps**: every other read returns a few of them and no others,
   so that other rows never queue behind them.
3. If thousands of topics are held, reads are confined to topics that are known to be there, which are fewer. Once a
   second, a read looks for rows of new topics.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from thresher.delivery.reading.row_source import Key, ReadRequest

_HELD_SECONDS = 2.0
# While reads are confined to some topics, how often one is not: it finds rows of new topics.
_EXPLORING_SECONDS = 1.0
# The rows of a sweep's read: few, so that other rows wait only for a short transaction, and one question about topics.
SWEPT_ROWS = 250
# For rows that wait behind another row, which is read more often. All are released once that row can be sent.
_BEHIND_SECONDS = 60.0


class Holds:
    """What reads leave out. Safe from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Held topics, keys of a topic, and rows with their create times; each with the time at which its hold ends.
        self._held: dict[str, float] = {}
        self._held_keys: dict[Key, float] = {}
        self._held_rows: dict[tuple[int, int], float] = {}
        # The topics that sweeps read, those that are finished, and whether the last read was a sweep.
        self._sweeping: frozenset[str] = frozenset()
        self._swept: frozenset[str] = frozenset()
        self._swept_last = False
        # If set, reads return rows of these topics only, except for sweeps and one read a second; that one is due next.
        self._confined: frozenset[str] | None = None
        self._next_exploring = 0.0

    def hold(
        self,
        topics: Iterable[str],
        keys: Iterable[Key] = (),
        rows: Mapping[int, int] = MappingProxyType({}),
        behind: Mapping[int, int] = MappingProxyType({}),
        lasting: Iterable[str] = (),
    ) -> None:
        """Leave these topics, keys and rows out of reads for 2 s; rows that wait `behind` others for a minute.

        `lasting` topics are left out until `unhold`.
        """
        with self._lock:
            now = self._clock()
            until = now + _HELD_SECONDS
            self._held.update(dict.fromkeys(topics, until))
            self._held.update(dict.fromkeys(lasting, math.inf))
            self._held_keys.update(dict.fromkeys(keys, until))
            self._held_rows.update(dict.fromkeys(behind.items(), now + _BEHIND_SECONDS))
            self._held_rows.update(dict.fromkeys(rows.items(), until))

    def unhold(self, topics: Iterable[str]) -> None:
        """Let rows of these topics be read again."""
        with self._lock:
            for topic in topics:
                self._held.pop(topic, None)
            self._sweeping -= frozenset(topics)
            if self._confined is not None:
                self._confined = self._confined.union(topics)

    def sweep(self, topics: frozenset[str]) -> frozenset[str]:
        """Read rows of these held topics by sweeps, unless a sweep of others is not finished.

        Return the topics that a sweep has finished since the last call. Their hold has ended.
        """
        with self._lock:
            swept, self._swept = self._swept, frozenset()
            if not self._sweeping:
                self._sweeping = topics - swept
            return swept

    def swept(self) -> None:
        """Note that a sweep found no more rows: the hold of its topics ends."""
        with self._lock:
            for topic in self._sweeping:
                self._held.pop(topic, None)
            self._swept |= self._sweeping
            self._sweeping = frozenset()

    def confine(self, topics: frozenset[str] | None) -> None:
        """Read rows of these topics only, but once a second of all that are not held. None: always of all these."""
        with self._lock:
            self._confined = topics

    def release(self) -> None:
        """End all holds."""
        with self._lock:
            self._held.clear()
            self._held_keys.clear()
            self._held_rows.clear()

    def request(self, request: ReadRequest) -> ReadRequest:
        """Return what to read now: the request without what is held, or a sweep."""
        with self._lock:
            now = self._clock()
            self._held = {topic: until for topic, until in self._held.items() if until > now}
            self._held_keys = {key: until for key, until in self._held_keys.items() if until > now}
            self._held_rows = {row: until for row, until in self._held_rows.items() if until > now}
            sweeping = self._swept_last = bool(self._sweeping) and not self._swept_last
            among: Iterable[str] | None = self._sweeping if sweeping else self._confined
            if among is not None and not sweeping:
                if now >= self._next_exploring:
                    self._next_exploring, among = now + _EXPLORING_SECONDS, None
                else:
                    # A topic may be held for a while, and read again after that.
                    among = [topic for topic in among if topic not in self._held]
            return replace(
                request,
                rows=min(request.rows, SWEPT_ROWS) if sweeping else request.rows,
                held=list(self._held if among is None else among),
                among=among is not None,
                sweeping=sweeping,
                held_keys=list(self._held_keys),
                held_rows=dict(self._held_rows.keys()),
            )
