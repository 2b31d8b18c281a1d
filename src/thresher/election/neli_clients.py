"""The properties of NELI's clients: those of the user, overridden by those that the protocol needs."""

from collections.abc import Mapping
from typing import Any

from thresher.election.settings import ElectionSettings
from thresher.kafka.fetch_sizes import bounded_fetches

# The shortest session time-out that a broker allows by default.
_LEAST_SESSION_SECONDS = 6.0
# Between the end of a leader's deadline and the end of its session.
_MARGIN_SECONDS = 1.0
GROUP_BEAT_SECONDS = 0.3


def session_seconds(heartbeat_timeout_seconds: float) -> float:
    """Return the session time-out: longer than a leader waits for its own heartbeat."""
    return max(_LEAST_SESSION_SECONDS, heartbeat_timeout_seconds + _MARGIN_SECONDS)


def beat_seconds(settings: ElectionSettings) -> float:
    """Return the interval of a leader's heartbeats: ten within the deadline, if the given bounds allow it."""
    wanted = settings.heartbeat_timeout_seconds / 10
    return max(settings.min_poll_seconds, min(wanted, settings.max_poll_seconds))


def consumer_properties(kafka: Mapping[str, Any], group: str, settings: ElectionSettings) -> dict[str, Any]:
    """Return the properties of a competitor's consumer: the user's, overridden by those that the protocol needs."""
    session = int(session_seconds(settings.heartbeat_timeout_seconds) * 1000)
    return {
        "log_level": 2,
        "reconnect.backoff.max.ms": 1000,
        **bounded_fetches(kafka),
        "group.id": group,
        "group.protocol": "classic",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session,
        # A thread that hangs loses the partition as soon as a process that hangs.
        "max.poll.interval.ms": session,
        "heartbeat.interval.ms": int(GROUP_BEAT_SECONDS * 1000),
        # The statistics show whether the member is in its group.
        "statistics.interval.ms": 2000,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "latest",
        # An open transaction of another program on a shared topic must not hide our heartbeats.
        "isolation.level": "read_uncommitted",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 1000,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 100,
        "socket.timeout.ms": session,
        "queued.max.messages.kbytes": 1024,
    }


def producer_properties(kafka: Mapping[str, Any], settings: ElectionSettings) -> dict[str, Any]:
    """Return the properties of the producer of heartbeats. A late heartbeat is useless, so it is dropped."""
    timeout = int(settings.heartbeat_timeout_seconds * 1000)
    return {
        "log_level": 2,
        "reconnect.backoff.max.ms": 1000,
        **kafka,
        "acks": 1,
        "enable.idempotence": False,
        "linger.ms": 0,
        "message.timeout.ms": timeout,
        "request.timeout.ms": timeout,
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 1000,
    }
