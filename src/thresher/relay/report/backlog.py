"""The backlog: how many rows wait, and for how long. By shard; with topic locks, by topic too."""

from dataclasses import dataclass

from thresher.db.topic_locks import LockingSession, TopicFigures
from thresher.relay.settings import Coordination, Settings

# Topics that are reported: those that wait longest.
_MAX_TOPICS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The pending and the dead rows. If it is not `exact`, `pending` and `by_shard` are estimates."""

    pending: int
    exact: bool
    by_shard: tuple[int, ...]
    oldest_seconds: float | None
    dead: int
    blocking: int
    # By topic, with topic locks only.
    topics: tuple[TopicFigures, ...] = ()


def read_backlog(session: LockingSession, settings: Settings) -> Backlog:
    """Query the outbox and its dead rows."""
    found, shards = session.backlog(), settings.shards
    by_locks = settings.coordination is Coordination.TOPIC_LOCK
    counts = found.by_bucket.items()
    return Backlog(
        pending=found.pending,
        exact=found.exact,
        by_shard=tuple(sum(count for bucket, count in counts if bucket % shards == each) for each in range(shards)),
        oldest_seconds=found.oldest_seconds,
        dead=found.dead,
        blocking=found.blocking,
        topics=tuple(session.topic_locks().figures(_MAX_TOPICS)) if by_locks else (),
    )
