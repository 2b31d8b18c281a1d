"""How many rows wait, and for how long: by shard, and where topics are locked, by topic."""

from dataclasses import dataclass

from thresher.db.topic_locks import LockingSession, TopicFigures
from thresher.relay.settings import Coordination, Settings

# Topics that are told of; a service with more has its longest waits among them.
_MOST_TOPICS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits. If it is not `exact`, `pending` and `by_shard` are estimates."""

    pending: int
    exact: bool
    by_shard: tuple[int, ...]
    oldest_seconds: float | None
    dead: int
    blocking: int
    # By topic, where topics are locked.
    topics: tuple[TopicFigures, ...] = ()


def read_backlog(session: LockingSession, settings: Settings) -> Backlog:
    """Look at the outbox and its dead rows."""
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
        topics=tuple(session.topic_locks().figures(_MOST_TOPICS)) if by_locks else (),
    )
