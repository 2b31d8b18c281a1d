"""The names that contain a relay's own: transactional ids, its topic, its sessions; and the tables of a relay."""

import hashlib
import re

from thresher.db import TableName, statement
from thresher.db.postgres.control import control_table
from thresher.db.shape import BUCKETS, Shape
from thresher.election.lease import LEASES

# With what is added to it, a topic's name must fit, and so must a transactional id in a broker's log.
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")


def valid_name(name: str) -> bool:
    """Whether a relay can be named so."""
    return _NAME.fullmatch(name) is not None


def transactional_id(name: str, shard: int, lane: int = 0) -> str:
    """Return the id under which a shard publishes; with a lane, one that it moves to while that one is blocked."""
    return f"{name}-{shard}.{lane}" if lane else f"{name}-{shard}"


# How the name of every relay's progress topic ends.
PROGRESS = ".progress"


def progress_topic(name: str) -> str:
    """Return the topic of the relay's progress."""
    return f"{name}{PROGRESS}"


def sessions(name: str, term: str = "") -> str:
    """Return how the names of a relay's database sessions begin; with a term, those of that term.

    Postgres keeps 63 bytes: the relay's own name may be longer.
    """
    return f"thresher/{_short(name)}/{term}"


def visitor(name: str, term: str = "") -> str:
    """Return the name of a database session that works on no rows, and that nobody ends.

    With a term, that of a process which founds a group of relays under it.
    """
    return f"thresher-join/{_short(name)}/{term}"


def shard_sessions(name: str, term: str, shard: int) -> str:
    """Return the name of all database sessions of one shard."""
    return f"{sessions(name, term)}/{shard}"[:63]


def companions(outbox: TableName, shape: Shape) -> list[str]:
    """Return the DDL of every table beside the outbox that a relay and its election use."""
    return [
        statement(f"{shape.prefix}_dead_create", outbox),
        statement("control_create", control_table(outbox.schema)),
        statement("lease_create", TableName(table=LEASES, schema=outbox.schema)),
    ]


def buckets_of(shard: int, shards: int) -> list[int]:
    """Return the buckets that a shard owns. The same for ever: a key stays in its shard while the number does."""
    return list(range(shard, BUCKETS, shards))


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]
