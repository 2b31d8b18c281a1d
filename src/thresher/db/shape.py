"""The shapes an outbox table can have, and what a key's bucket is."""

import enum
import hashlib

BUCKETS = 64


class Shape(enum.Enum):
    """How the table looks: what its columns hold, and, in Deimos' table, what they are called."""

    THRESHER = "thresher"
    """Our own: bytes, NULL keys, tombstones, partition, timestamp, dispatched time, and a bucket with its index."""

    GOHARVEST = "goharvest"
    """As goharvest's users have it: text only, a key is required, no partition and no timestamp."""

    DEIMOS = "deimos"
    """As Deimos' users have it, made by Rails: bytes, NULL keys, a partition key, no headers and no timestamp."""

    @property
    def prefix(self) -> str:
        """How the names of the statements begin that differ between the shapes."""
        return "outbox" if self is Shape.THRESHER else self.value


def bucket_of(key: bytes) -> int:
    """Return the bucket of a key, exactly as the table's generated column computes it."""
    return hashlib.sha256(key).digest()[0] % BUCKETS
