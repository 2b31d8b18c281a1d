"""The statements that read pending rows, of either shape."""

from thresher.db.names import TableName
from thresher.db.shape import Shape
from thresher.db.statements import statement

# Of the buckets, the one in turn.
_ONE = "i.bucket >= b.bucket AND i.bucket <= b.bucket"
_WINDOW = "i.id > %(last)s AND i.id <= %(upto)s AND i.bucket = ANY (%(buckets)s::smallint[])"
_OLD = "pg_catalog.age(i.xmin) > (SELECT pg_catalog.age(%(horizon)s::xid8::xid)) AS old"
# Arrays counted from 1, whatever their bounds are; an array of arrays is a flaw, and stays behind.
_COUNTED = "CASE WHEN array_ndims(i.{0}) = 1 THEN i.{0}[:] ELSE '{{}}' END"
_ARRAYS = ("kafka_header_keys", "kafka_header_values")


def head_query(shape: Shape, outbox: TableName, unclaimed: str = "relay_not_in_flight") -> str:
    """Return the statement that reads the head of each bucket, without what `unclaimed` leaves out."""
    if shape is not Shape.THRESHER:
        return statement(f"{shape.prefix}_head", outbox, unclaimed=statement(unclaimed).strip())
    return statement("outbox_head", outbox, pick=_pick(outbox, mine=_ONE, unclaimed=unclaimed))


def window_query(outbox: TableName, *, counted: bool = False) -> str:
    """Return the statement that reads a window of ids and tells which rows are old: arrays as stored, or from 1."""
    pick = _pick(outbox, mine=_WINDOW, more=f",\n       {_OLD}", counted=counted)
    return statement("outbox_head_window", outbox, pick=pick)


def next_query(outbox: TableName) -> str:
    """Return the statement that finds a shard's first row behind an id."""
    return statement("outbox_next", outbox, unclaimed=statement("relay_not_in_flight").strip())


def bounded_query(head: str) -> str:
    """Return the same, bounded by bytes too."""
    return statement("relay_head_bounded", head=head)


def _pick(
    outbox: TableName, *, mine: str, unclaimed: str = "relay_not_in_flight", more: str = "", counted: bool = True
) -> str:
    arrays = {column: _COUNTED.format(column) if counted else f"i.{column}" for column in _ARRAYS}
    left_out = statement(unclaimed).strip()
    return statement("outbox_pick", outbox, mine=mine, unclaimed=left_out, more=more, **arrays).rstrip()
