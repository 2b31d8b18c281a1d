"""The number of pending rows in Postgres: exact while they are few, estimated when counting would cost too much."""

from typing import Any

import psycopg

from thresher.db.names import TableName
from thresher.db.outbox_store import OutboxBacklog
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.sessions import explained
from thresher.db.shape import Shape
from thresher.db.statements import statement

MOST_COUNTED = 10_000
_SAMPLED_PAGES = 500


def read_backlog(connection: psycopg.Connection[Any], outbox: TableName, shape: Shape) -> OutboxBacklog:
    """Count pending rows up to `MOST_COUNTED`; beyond that, estimate them from a sample of the table's pages."""
    cursor = OwnCursor(connection)
    with explained():
        counts: dict[int, int] = dict(cursor.execute(statement(f"{shape.prefix}_pending", outbox)).fetchall())
        pending = sum(counts.values())
        exact = pending <= MOST_COUNTED
        if not exact:
            # The planner's statistics are useless here: the table is empty most of the time.
            pages = cursor.execute(statement("relay_pages"), [outbox.quoted()]).fetchone()
            share = min(1.0, _SAMPLED_PAGES / max(1, pages[0] if pages else 1))
            sample = cursor.execute(statement(f"{shape.prefix}_estimate", outbox), [100 * share]).fetchall()
            counts = {bucket: round(count / share) for bucket, count in sample}
            pending = max(MOST_COUNTED + 1, sum(counts.values()))
        oldest = cursor.execute(statement(f"{shape.prefix}_oldest", outbox)).fetchone()
        dead = cursor.execute(statement("dead_count", outbox)).fetchone()
    return OutboxBacklog(
        pending=pending,
        exact=exact,
        by_bucket=counts,
        oldest_seconds=max(0.0, oldest[0]) if oldest and oldest[0] is not None else None,
        dead=dead[0] if dead else 0,
        blocking=dead[1] if dead else 0,
    )
