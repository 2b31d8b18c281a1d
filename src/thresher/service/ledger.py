"""The counts of one process over all its leaderships: an engine counts from 0, Prometheus must not."""

import threading
from collections.abc import Callable, Mapping

from thresher.core.errors import kind_of
from thresher.kafka.refusal import fenced
from thresher.observe.tally import Number, summed
from thresher.spark.driver.snapshot import ShardSnapshot, Snapshot


class Ledger:
    """Sums the shards' figures over engines, and takes the driver's own. No figure ever goes back. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._past: dict[int, dict[str, Number]] = {}
        self._own: dict[str, Number] = {}
        self._current: Callable[[], Snapshot] | None = None

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a figure of the driver's."""
        with self._lock:
            self._own[name] = self._own.get(name, 0) + amount

    def count_error(self, error: BaseException) -> None:
        """Count an error of the driver's by its kind, and a fence if the broker's epoch was the reason."""
        self.count(f"errors.{kind_of(error)}")
        if fenced(error):
            self.count("fences.broker")

    def follow(self, snapshot: Callable[[], Snapshot]) -> None:
        """A new leadership has begun: its figures come on top."""
        with self._lock:
            self._fold()
            self._current = snapshot

    def close(self) -> None:
        """The leadership is over, and its figures are final."""
        with self._lock:
            self._fold()

    def shards(self) -> dict[int, Mapping[str, Number]]:
        """Return what each shard has counted so far."""
        with self._lock:
            return dict(self._sums())

    def total(self, figure: str) -> int:
        """Return a figure of all shards together."""
        return sum(int(counts.get(figure, 0)) for counts in self.shards().values())

    def driver(self) -> Mapping[str, Number]:
        """Return what the driver has counted so far."""
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
    """Return what a shard counted, with what the engine counted about it."""
    return {**shard.counts, "restarts": shard.restarts, "events_dropped": shard.events_dropped}
