"""The shapes of an outbox table, which `db.shape` defines."""

from thresher.db.shape import BUCKETS, Shape, bucket_of

__all__ = ["BUCKETS", "Shape", "bucket_of"]
