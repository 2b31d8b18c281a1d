"""The settings of a tracker: topics, clients and limits. The driver sends them to the shards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.core.secrets import kept_properties
from thresher.queue.limits import Limit
from thresher.spark.policy import Policy
from thresher.tracker.protocol.contents import Contents, Store
from thresher.tracker.protocol.tracking import Rules

# The parts of the memory limit that contents of Starts take before all are compressed, and before more go to disk.
_ROOMY_PART, _IN_MEMORY_PART = 16, 8
# The largest size of a shard's temporary file, in memory limits.
_DISK_FACTOR = 16

# A shard that restarts reads everything again, so it waits longer before a restart than other workloads.
POLICY = Policy(back_off_seconds=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSettings:
    """The settings of the tracker of one pair of topics."""

    message_topic: str
    marker_topic: str
    dead_topic: str
    # The clients' properties. Secrets are kept as `Secret`.
    kafka: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    consumer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    shards: int = 1
    limit: Limit = field(default_factory=Limit)
    # By queue, for queues with a limit of their own.
    limits: Mapping[bytes, Limit] = field(default_factory=dict)
    markers_per_commit: int = 1_000
    use_now_after_seconds: float = 0.0
    memory_bytes: int = 2_048 << 20
    # The maximum size of a batch, which the broker checks as a whole. Determined at the take-over.
    batch_bytes: int = 1_000_000
    # The largest message that queues deliver: a larger one's dead letter is written in parts.
    max_message_bytes: int = 1_048_576
    # Continue although markers were removed before they were read.
    accept_lost_markers: bool = False

    def __post_init__(self) -> None:
        # A frozen dataclass can set its fields in no other way.
        for section in ("kafka", "producer", "consumer"):
            object.__setattr__(self, section, kept_properties(getattr(self, section)))

    @property
    def name(self) -> str:
        """The identity shared by all trackers of these topics, also the name of the group whose offsets they commit."""
        return f"{self.marker_topic}.tracker"

    @property
    def disk_bytes(self) -> int:
        """The maximum size of a shard's temporary file."""
        return _DISK_FACTOR * self.memory_bytes

    def contents(self, store: Store) -> Contents:
        """Return the contents of a shard's Starts, empty."""
        return Contents(
            store, roomy_bytes=self.memory_bytes // _ROOMY_PART, most_bytes=self.memory_bytes // _IN_MEMORY_PART
        )

    def transactional_id(self, partition: int) -> str:
        """Return the transactional id for a marker partition.

        It does not depend on the shard or on the number of shards.
        """
        return f"{self.name}-{partition}"

    def rules(self, retention_ms: int) -> Rules:
        """Return the rules of tracking for this retention of the markers; negative means unlimited."""
        return Rules(
            limit_of=lambda queue: self.limits.get(queue, self.limit),
            markers_per_commit=self.markers_per_commit,
            **({} if retention_ms < 0 else {"rewrite_after_ms": retention_ms // 2}),
        )


def owned(partition: int, shard: int, shards: int) -> bool:
    """Whether a shard owns a marker partition."""
    return partition % shards == shard
