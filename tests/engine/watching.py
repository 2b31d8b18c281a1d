"""Waits for the snapshots of an engine in the test process."""

import time
from collections.abc import Callable

from thresher.spark.driver.engine import Engine
from thresher.spark.driver.lifecycle import Lifecycle
from thresher.spark.driver.snapshot import ShardSnapshot, Snapshot
from thresher.spark.driver.supervision import Phase

# Only how long a failing test waits. Seen: 0.6 s for a restart, 3 s for the run's first engine to be up.
PATIENCE = 60.0


def until(engine: Engine, condition: Callable[[Snapshot], object], seconds: float = PATIENCE) -> Snapshot:
    """Wait until a snapshot satisfies the condition, and return it: the next one may differ."""
    deadline = time.monotonic() + seconds
    while not condition(shot := engine.snapshot()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {shot}"
        time.sleep(0.01)
    return shot


def lifecycle_of(engine: Engine) -> Lifecycle:
    """Return the loop and the shards of an engine, to break them: an engine shows only snapshots of them."""
    return engine._lifecycle


def up(engine: Engine) -> tuple[ShardSnapshot, ...]:
    """Wait until every shard runs and has reported counts."""
    return until(engine, lambda shot: all(counting(shard) for shard in shot.shards)).shards


def counting(shard: ShardSnapshot) -> bool:
    return shard.state is Phase.RUNNING and shard.counts.get("rows", 0) > 0


def replaced(engine: Engine, before: ShardSnapshot) -> ShardSnapshot:
    """Wait until another attempt of the shard counts. Counts are sums over attempts; only gauges belong to one."""
    shot = until(
        engine,
        lambda shot: (
            counting(now := shot.shards[before.shard]) and now.pid != before.pid and now.attempt > before.attempt
            and now.gauges.get("last")
        ),
    )  # fmt: skip
    now = shot.shards[before.shard]
    assert now.counts["rows"] > before.counts["rows"]
    return now


def untouched(engine: Engine, before: ShardSnapshot) -> None:
    """Check that the shard runs the same attempt in the same process, and goes on counting."""
    shot = until(engine, lambda shot: shot.shards[before.shard].counts["rows"] > before.counts["rows"])
    now = shot.shards[before.shard]
    assert (now.attempt, now.pid, now.restarts) == (before.attempt, before.pid, before.restarts)
