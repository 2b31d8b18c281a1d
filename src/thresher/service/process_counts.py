"""The counts of a process over all its leaderships.

Each engine counts from 0, but a Prometheus counter must not fall back to 0 while its process runs.
"""

import threading
from collections.abc import Callable, Mapping

from thresher.core.errors import kind_of
from thresher.kafka.refusal import fenced
from thresher.observe.figure_sink import Number, summed
from thresher.spark.driver.snapshot import ShardSnapshot, Snapshot


class ProcessCounts:
    """Sums the shards' counts over engines, and keeps the driver's own. No count ever falls. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._past: dict[int, dict[str, Number]] = {}
        self._own: dict[str, Number] = {}
        self._current: Callable[[], Snapshot] | None = None

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a count of the driver."""
        with self._lock:
            self._own[name] = self._own.get(name, 0) + amount

    def count_error(self, error: BaseException) -> None:
        """Count an error of the driver by its kind, and a fence if the broker fenced the producer."""
        self.count(f"errors.{kind_of(error)}")
        if fenced(error):
            self.count("fences.broker")

    def follow(self, snapshot: Callable[[], Snapshot]) -> None:
        """Add the counts of a new leadership, which `snapshot` returns, to the sums from now on."""
        with self._lock:
            self._fold()
            self._current = snapshot

    def close(self) -> None:
        """Make the counts of the leadership final, because it is over."""
        with self._lock:
            self._fold()

    def shards(self) -> dict[int, Mapping[str, Number]]:
        """Return the counts of each shard so far."""
        with self._lock:
            return dict(self._sums())

    def total(self, figure: str) -> int:
        """Return a count, summed over all shards."""
        return sum(int(counts.get(figure, 0)) for counts in self.shards().values())

    def driver(self) -> Mapping[str, Number]:
        """Return the counts of the driver so far."""
        with self._lock:
            return dict(self._own)

    def _fold(self) -> None:
        self._past, self._current = self._sums(), None

    def _sums(self) -> dict[int, dict[str, Number]]:
        sums = dict(self._past)
        for shard in self._current().shards if self._current is not None else ():
            sums[shard.shard] = summed([sums.get(shard.shard, {}), _counts(shard)])
        return sums


def _counts(shard: ShardSnapshot) -> dict[str, Number]:
    """Return the counts of a shard, with the engine's counts of its restarts and dropped events."""
    return {**shard.counts, "restarts": shard.restarts, "events_dropped": shard.events_dropped}
