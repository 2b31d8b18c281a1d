"""The shapes of an outbox table, and the bucket of a key."""

import enum
import hashlib

BUCKETS = 64
# Headers of one message. A header takes a hundred bytes of memory in a relay or tail, however short it is.
MOST_HEADERS = 10_000


class Shape(enum.Enum):
    """The columns of an outbox table: their types, and in Deimos' table their names."""

    THRESHER = "thresher"
    """Thresher's own: bytes, NULL keys, tombstones, partition, timestamp, dispatched time, and an indexed bucket."""

    GOHARVEST = "goharvest"
    """goharvest's table: text only, a key is required, no partition and no timestamp."""

    DEIMOS = "deimos"
    """Deimos' table, made by Rails: bytes, NULL keys, a partition key, no headers and no timestamp."""

    @property
    def prefix(self) -> str:
        """The prefix of the names of statements that differ between shapes."""
        return "outbox" if self is Shape.THRESHER else self.value


def bucket_of(key: bytes) -> int:
    """Return the bucket of a key, exactly as the table's generated column computes it."""
    return hashlib.sha256(key).digest()[0] % BUCKETS
