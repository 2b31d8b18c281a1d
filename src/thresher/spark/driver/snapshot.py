"""What an engine looks like at one moment: for a status command, a metrics endpoint or a test."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from thresher.observe.tally import Number
from thresher.spark.driver.supervision import Phase


class EngineState(StrEnum):
    """Where the engine as a whole is. The last two are for good."""

    NEW = "new"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSnapshot:
    """One shard. Figures are as of its last beat: at most a second old while it runs."""

    shard: int
    state: Phase
    # How long it has been in that state.
    seconds: float
    attempt: int
    restarts: int
    host: str | None
    pid: int | None
    last_error: str | None
    resident_bytes: int | None
    # Sums over all attempts; only what a killed attempt counted after its last beat is missing.
    counts: dict[str, Number] = field(default_factory=dict)
    gauges: dict[str, Number] = field(default_factory=dict)
    # Reported faster than they could be sent or observed.
    events_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The engine and all its shards."""

    pipeline: str
    state: EngineState
    error: str | None
    master: str | None
    shards: tuple[ShardSnapshot, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can carry."""
        return asdict(self)
