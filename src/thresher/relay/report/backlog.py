"""How many rows wait, and for how long: exact while they are few, estimated when counting would cost too much."""

from dataclasses import dataclass
from typing import Any

import psycopg

from thresher.db import TableName, statement
from thresher.db.cursor import OwnCursor
from thresher.outbox.shape import Shape
from thresher.relay.database import explained

MOST_COUNTED = 10_000
_SAMPLED_PAGES = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits. Up to `MOST_COUNTED` rows it is exact, by shard too; beyond, everything is an estimate."""

    pending: int
    exact: bool
    by_shard: tuple[int, ...]
    oldest_seconds: float | None
    dead: int
    blocking: int


def read_backlog(connection: psycopg.Connection[Any], outbox: TableName, shape: Shape, shards: int) -> Backlog:
    """Look at the outbox and its dead rows."""
    cursor = OwnCursor(connection)
    with explained():
        counts = cursor.execute(statement(f"{shape.prefix}_pending", outbox)).fetchall()
        pending = sum(count for _, count in counts)
        exact = pending <= MOST_COUNTED
        if not exact:
            # Statistics are those of a table that is mostly empty: look at some of its pages instead.
            pages = cursor.execute(statement("relay_pages"), [outbox.quoted()]).fetchone()
            share = min(1.0, _SAMPLED_PAGES / max(1, pages[0] if pages else 1))
            sample = cursor.execute(statement(f"{shape.prefix}_estimate", outbox), [100 * share]).fetchall()
            counts = [(bucket, round(count / share)) for bucket, count in sample]
            pending = max(MOST_COUNTED + 1, sum(count for _, count in counts))
        by_shard = [sum(count for bucket, count in counts if bucket % shards == shard) for shard in range(shards)]
        oldest = cursor.execute(statement(f"{shape.prefix}_oldest", outbox)).fetchone()
        dead = cursor.execute(statement("dead_count", outbox)).fetchone()
    return Backlog(
        pending=pending,
        exact=exact,
        by_shard=tuple(by_shard),
        oldest_seconds=max(0.0, oldest[0]) if oldest and oldest[0] is not None else None,
        dead=dead[0] if dead else 0,
        blocking=dead[1] if dead else 0,
    )
