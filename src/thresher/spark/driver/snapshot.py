"""The state of an engine and its shards at one moment, for status commands, metrics and tests."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from thresher.observe.figure_sink import Number
from thresher.spark.driver.supervision import Phase


class EngineState(StrEnum):
    """The state of the engine as a whole. The last two are final."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSnapshot:
    """One shard. Its figures come with its heartbeats, and are at most one interval old while it runs."""

    shard: int
    state: Phase
    # Time since the shard entered this state.
    seconds: float
    attempt: int
    restarts: int
    host: str | None
    pid: int | None
    last_error: str | None
    resident_bytes: int | None
    # Sums over all attempts. Counts that a killed attempt made after its last heartbeat are missing.
    counts: dict[str, Number] = field(default_factory=dict)
    gauges: dict[str, Number] = field(default_factory=dict)
    # The steps that run, and for how many seconds.
    steps: dict[str, Number] = field(default_factory=dict)
    # The texts that its functions attach to heartbeats (`Shard.note`), by name.
    notes: dict[str, Sequence[str]] = field(default_factory=dict)
    # Events that were reported faster than they could be sent or observed.
    events_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The engine and all its shards."""

    pipeline: str
    state: EngineState
    error: str | None
    master: str | None
    shards: tuple[ShardSnapshot, ...]

    @property
    def without_slot(self) -> dict[int, str]:
        """The shards that wait for a slot of Spark, each with what it needs."""
        return {
            each.shard: slot_needed(len(self.shards), self.master)
            for each in self.shards
            if each.state is Phase.WAITING and self.state is EngineState.RUNNING
        }

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as plain values for JSON."""
        return asdict(self)


def slot_needed(shards: int, master: str | None) -> str:
    """Return what a shard without a slot waits for, and what to do."""
    return (
        f"no slot of Spark has taken it so far: {shards} shards need {shards} cores of {master or 'Spark'} at once; "
        "give it more cores (spark.cores.max, the cluster's size), end what holds them, or run fewer shards"
    )
