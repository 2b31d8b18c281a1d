"""The statements that read a head, of either shape."""

from thresher.db.names import TableName
from thresher.db.shape import Shape
from thresher.db.statements import statement

_MINE = "i.bucket = ANY (%(buckets)s::smallint[])"
# Of the buckets, the one in turn.
_ONE = "i.bucket >= b.bucket AND i.bucket <= b.bucket"
_OLD = "pg_catalog.age(i.xmin) > (SELECT pg_catalog.age(%(horizon)s::xid8::xid)) AS old"
# Arrays counted from 1, whatever their bounds are; one of arrays is a flaw, and stays behind.
_COUNTED = "CASE WHEN array_ndims(i.{0}) = 1 THEN i.{0}[:] ELSE '{{}}' END"
_ARRAYS = ("kafka_header_keys", "kafka_header_values")


def head_query(shape: Shape, outbox: TableName, unclaimed: str = "relay_not_in_flight") -> str:
    """Return the statement that reads a head by buckets, without what `unclaimed` leaves out."""
    if shape is not Shape.THRESHER:
        return statement(f"{shape.prefix}_head", outbox, unclaimed=statement(unclaimed).strip())
    return statement("outbox_head", outbox, pick=_pick(outbox, mine=_ONE, unclaimed=unclaimed))


def aged_query(outbox: TableName, *, counted: bool = False) -> str:
    """Return the statement that reads a head of our own shape by age: arrays as they are, or counted from 1."""
    pick = _pick(outbox, mine=_MINE, more=",\n       i.bucket", counted=counted)
    return statement("outbox_head_by_age", outbox, pick=pick)


def window_query(outbox: TableName, *, counted: bool = False) -> str:
    """Return the statement that goes on by age: in a window of ids, and telling which rows are old."""
    mine = f"i.id > %(last)s AND i.id <= %(upto)s AND {_MINE}"
    pick = _pick(outbox, mine=mine, more=f",\n       i.bucket, {_OLD}", counted=counted)
    return statement("outbox_head_window", outbox, pick=pick)


def bounded_query(head: str) -> str:
    """Return the same, bounded by bytes too."""
    return statement("relay_head_bounded", head=head)


def _pick(
    outbox: TableName, *, mine: str, unclaimed: str = "relay_not_in_flight", more: str = "", counted: bool = True
) -> str:
    arrays = {column: _COUNTED.format(column) if counted else f"i.{column}" for column in _ARRAYS}
    left_out = statement(unclaimed).strip()
    return statement("outbox_pick", outbox, mine=mine, unclaimed=left_out, more=more, **arrays).rstrip()
