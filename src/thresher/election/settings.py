"""The settings of an election, read once, at the edge."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class ElectionKind(enum.StrEnum):
    """How a leader is found."""

    # A consumer group on a leader topic.
    NELI = "neli"
    # A row in a database.
    LEASE = "lease"
    # No election: the newest process leads.
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """How to compete. Times are generous enough that a busy machine does not lose a leadership that it has."""

    kind: ElectionKind = ElectionKind.LEASE
    # neli: the topic whose partition 0 decides, and the consumer group; both from the pipeline's name if None.
    leader_topic: str | None = None
    leader_group: str | None = None
    # neli: a leader that has not heard its own heartbeat for so long steps down.
    heartbeat_timeout_seconds: float = 5.0
    # neli: the least and the most that may be between two heartbeats; it waits for news for the least at a time.
    min_poll_seconds: float = 0.1
    max_poll_seconds: float = 2.5
    # neli: makes the group's consumer from the client's properties. None for confluent_kafka's own.
    consumer_factory: Callable[[dict[str, Any]], Any] | None = None
    # For so long, refused credentials and permissions are waited out.
    grace_seconds: float = 60.0
    # lease: how long one is good for without being renewed.
    lease_seconds: float = 1.5
