"""The shapes of an outbox table, which `db.shape` defines."""

from thresher.db.shape import BUCKETS, MOST_HEADERS, Shape, bucket_of

__all__ = ["BUCKETS", "MOST_HEADERS", "Shape", "bucket_of"]
