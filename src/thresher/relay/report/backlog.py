"""How many rows wait, and for how long, by shard."""

from dataclasses import dataclass

from thresher.db.outbox_store import StoreSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits. If it is not `exact`, `pending` and `by_shard` are estimates."""

    pending: int
    exact: bool
    by_shard: tuple[int, ...]
    oldest_seconds: float | None
    dead: int
    blocking: int


def read_backlog(session: StoreSession, shards: int) -> Backlog:
    """Look at the outbox and its dead rows."""
    found = session.backlog()
    counts = found.by_bucket.items()
    return Backlog(
        pending=found.pending,
        exact=found.exact,
        by_shard=tuple(sum(count for bucket, count in counts if bucket % shards == each) for each in range(shards)),
        oldest_seconds=found.oldest_seconds,
        dead=found.dead,
        blocking=found.blocking,
    )
