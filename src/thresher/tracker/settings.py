"""What a tracker needs to know: topics, clients and rules. It travels to the shards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thresher.queue.limits import Limit
from thresher.spark.policy import Policy
from thresher.tracker.protocol.tracking import Rules

# A shard that starts over reads everything again: it does so less eagerly than one that has nothing to lose.
POLICY = Policy(back_off_seconds=0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSettings:
    """One tracker: that of a pair of topics."""

    message_topic: str
    marker_topic: str
    dead_topic: str
    # The clients' properties may hold secrets.
    kafka: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    consumer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    shards: int = 1
    limit: Limit = field(default_factory=Limit)
    # By queue, where it is not the limit of all.
    limits: Mapping[bytes, Limit] = field(default_factory=dict)
    markers_per_commit: int = 1_000
    use_now_after_seconds: float = 0.0
    memory_bytes: int = 2_048 << 20
    # The most bytes of a batch of records: the broker judges batches. Found out when it takes over.
    batch_bytes: int = 1_000_000
    # Go on where markers were removed before they were read.
    accept_lost_markers: bool = False

    @property
    def name(self) -> str:
        """The identity that all trackers of these topics share: also the group whose offsets they commit."""
        return f"{self.marker_topic}.tracker"

    def transactional_id(self, partition: int) -> str:
        """Return the transactional id for a partition of the markers, whichever shard of how many has it."""
        return f"{self.name}-{partition}"

    def rules(self, retention_ms: int) -> Rules:
        """Return the rules of tracking where markers are kept for so long; negative: for ever."""
        return Rules(
            limit_of=lambda queue: self.limits.get(queue, self.limit),
            markers_per_commit=self.markers_per_commit,
            **({} if retention_ms < 0 else {"rewrite_after_ms": retention_ms // 2}),
        )


def owned(partition: int, shard: int, shards: int) -> bool:
    """Whether a shard has a partition of the markers."""
    return partition % shards == shard
