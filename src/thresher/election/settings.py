"""The settings of an election."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class ElectionKind(enum.StrEnum):
    """How the leader is elected."""

    # A consumer group on a leader topic.
    NELI = "neli"
    # A row in a database.
    LEASE = "lease"
    # No election: the newest process leads.
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """How to compete. The default times are long enough that a busy machine does not lose its leadership."""

    kind: ElectionKind = ElectionKind.LEASE
    # neli: the topic whose partition 0 decides, and the consumer group. None: derived from the pipeline's name.
    leader_topic: str | None = None
    leader_group: str | None = None
    # neli: the deadline. A leader whose heartbeats do not succeed for this long steps down.
    heartbeat_timeout_seconds: float = 5.0
    # neli: the shortest and the longest interval between heartbeats. The shortest is also the time-out of a poll.
    min_poll_seconds: float = 0.1
    max_poll_seconds: float = 2.5
    # neli: creates the group's consumer from the client's properties. None: confluent_kafka's own consumer.
    consumer_factory: Callable[[dict[str, Any]], Any] | None = None
    # How long refused credentials and permissions are waited out.
    grace_seconds: float = 60.0
    # lease: the time after which a lease that is not renewed expires.
    lease_seconds: float = 1.5
