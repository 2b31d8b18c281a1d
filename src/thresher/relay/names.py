"""The DDL of a relay's tables, and the buckets of its shards."""

from thresher.db import TableName, statement
from thresher.db.postgres.control import control_ddl, control_table
from thresher.db.postgres.own_tables.lock_rows import lock_ddl, lock_table
from thresher.db.postgres.own_tables.wait_rows import wait_ddl, wait_table
from thresher.db.shape import BUCKETS, Shape
from thresher.election.lease import lease_ddl


def companions(outbox: TableName, shape: Shape) -> list[str]:
    """Return the DDL of every table beside the outbox that a relay and its election use."""
    return [
        statement(f"{shape.prefix}_dead_create", outbox),
        control_ddl(control_table(outbox.schema)),
        lock_ddl(lock_table(outbox.schema)),
        wait_ddl(wait_table(outbox.schema)),
        lease_ddl(outbox.schema),
    ]


def buckets_of(shard: int, shards: int) -> list[int]:
    """Return the buckets that a shard owns. A key stays in its shard as long as the number of shards is the same."""
    return list(range(shard, BUCKETS, shards))
