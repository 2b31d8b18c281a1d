"""Topics, keys and rows that reads leave out, and the sweeps that read rows whose wait is over.

1. A hold lasts 2 s, or until `unhold`. Rows that are known to wait behind another row are held for longer.
2. Rows of held topics whose wait is over are read by **sweeps**: every other read returns a few of them and no others,
   so that other rows never queue behind them. A sweep that goes on for long gives way to one of other topics.
3. If many topics are held, reads are confined to topics that took rows lately. Twice a second, a read looks for rows of
   further topics that exist, and once a second for rows of all topics that are not held.
4. A read names a bounded number of topics. While more are held, rows of topics that do not exist stay unread.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType

from thresher.delivery.reading.row_source import Key, ReadRequest

_HELD_SECONDS = 2.0
# While reads are confined to some topics, how often one is not: it finds rows of new topics. And how often one names
# the next of the further topics that exist. Then the rows of the former, and the topics of the latter.
_EXPLORING_SECONDS, _FURTHER_SECONDS = 1.0, 0.5
_EXPLORED_ROWS, _MOST_FURTHER = 1_000, 5_000
# The held topics that a read names, and their letters. With three times as many names of usual length Postgres compares
# each row with each name (the hash would exceed its memory), and a read takes minutes.
MOST_NAMED, _MOST_LETTERS = 20_000, 2_000_000
# After so long, a sweep gives way to one of other topics: rows may come without an end.
_SWEEP_SECONDS = 5.0
# The rows of a sweep's read: few, so that other rows wait only for a short transaction, and one question about topics.
SWEPT_ROWS = 250
# For rows that wait behind another row, which is read more often. All are released once that row can be sent.
_BEHIND_SECONDS = 60.0


class Holds:
    """What reads leave out. Safe from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Topics that are held until `unhold`.
        self._lasting: dict[str, None] = {}
        # Held topics, keys of a topic, and rows with their create times; each with the time at which its hold ends.
        self._held: dict[str, float] = {}
        self._held_keys: dict[Key, float] = {}
        self._held_rows: dict[tuple[int, int], float] = {}
        # The topics that sweeps read and since when, those that are finished, and whether the last read was a sweep.
        self._sweeping: frozenset[str] = frozenset()
        self._sweeping_since = 0.0
        self._swept: frozenset[str] = frozenset()
        self._swept_last = False
        # If set, reads return rows of these topics only, except for sweeps and the reads that are due at these times.
        self._confined: frozenset[str] | None = None
        self._next_exploring = self._next_further = 0.0
        # Whether the last read that was no sweep was one of these.
        self._wide_last = False
        # Further topics that exist. The one to be named next comes first.
        self._further: dict[str, None] = {}

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
            self._lasting.update(dict.fromkeys(lasting))
            self._held_keys.update(dict.fromkeys(keys, until))
            self._held_rows.update(dict.fromkeys(behind.items(), now + _BEHIND_SECONDS))
            self._held_rows.update(dict.fromkeys(rows.items(), until))

    def unhold(self, topics: Iterable[str]) -> None:
        """Let rows of these topics be read again."""
        with self._lock:
            for topic in topics:
                self._drop(topic)
            self._sweeping -= frozenset(topics)
            if self._confined is not None:
                self._confined = self._confined.union(topics)

    def sweep(self, topics: frozenset[str]) -> frozenset[str]:
        """Read rows of these held topics by sweeps, unless a sweep of others is not finished, and not long.

        Return the topics that a sweep has finished since the last call. Their hold has ended.
        """
        with self._lock:
            swept, self._swept = self._swept, frozenset()
            topics -= swept
            late = self._clock() - self._sweeping_since >= _SWEEP_SECONDS
            others = topics - self._sweeping if late else topics
            if others and (late or not self._sweeping):
                self._sweeping, self._sweeping_since = others, self._clock()
            return swept

    def swept(self, topics: Iterable[str]) -> None:
        """Note that a read of a sweep found no more rows of these topics: their hold ends.

        The sweep may have given way to one of other topics during the read: these were not read yet.
        """
        with self._lock:
            finished = self._sweeping.intersection(topics)
            for topic in finished:
                self._drop(topic)
            self._swept |= finished
            self._sweeping -= finished

    def _drop(self, topic: str) -> None:
        self._held.pop(topic, None)
        self._lasting.pop(topic, None)

    def confine(self, topics: frozenset[str] | None, existing: Iterable[str] = ()) -> None:
        """Read rows of these topics only, and now and then of others that exist, or of all that are not held.

        None: always of all that are not held.
        """
        with self._lock:
            self._confined = topics
            further = dict.fromkeys(existing)
            # Those that were waiting for their turn keep it.
            self._further = {topic: None for topic in self._further if topic in further} | further

    def release(self) -> None:
        """End all holds."""
        with self._lock:
            self._held.clear()
            self._lasting.clear()
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
            among = self._sweeping if sweeping else self._among(now)
            # A look for rows of all topics mostly finds rows that must wait: others wait while they are held.
            exploring = among is None and self._confined is not None
            most = SWEPT_ROWS if sweeping else _EXPLORED_ROWS if exploring else request.rows
            return replace(
                request,
                rows=min(request.rows, most),
                held=[*self._held, *self._lasting] if among is None else list(among),
                among=among is not None,
                sweeping=sweeping,
                held_keys=list(self._held_keys),
                held_rows=dict(self._held_rows.keys()),
            )

    def _among(self, now: float) -> Collection[str] | None:
        """Return the topics of which the next read that is no sweep returns rows; None: of all that are not held."""
        if self._confined is None:
            return None if self._nameable() else ()
        # However long reads take, every other one is for topics that took rows lately. What is due longest comes first.
        self._wide_last = not self._wide_last
        if self._wide_last:
            for due in sorted((self._next_further, self._next_exploring)):
                if now >= due == self._next_further and (among := self._next_of_further(now)):
                    return among
                if now >= due == self._next_exploring and self._nameable():
                    self._next_exploring = now + _EXPLORING_SECONDS
                    return None
            self._wide_last = False
        return self._not_held(self._confined)

    def _next_of_further(self, now: float) -> list[str]:
        """Return the further topics whose turn it is to be named."""
        self._next_further = now + _FURTHER_SECONDS
        turn = list(islice(self._further, _MOST_FURTHER))
        for topic in turn:
            del self._further[topic]
        self._further.update(dict.fromkeys(turn))
        return self._not_held(topic for topic in turn if topic not in (self._confined or ()))

    def _not_held(self, topics: Iterable[str]) -> list[str]:
        """Return topics that are not held: a topic that is there may be held too, for a while."""
        return [topic for topic in topics if topic not in self._held and topic not in self._lasting]

    def _nameable(self) -> bool:
        """Whether the held topics are few enough to be named in a read."""
        few = len(self._held) + len(self._lasting) <= MOST_NAMED
        return few and sum(map(len, chain(self._held, self._lasting))) <= _MOST_LETTERS
