"""The statements that read pending rows, for each shape. A head is the oldest pending rows of a shard."""

from typing import Any

from thresher.db.names import TableName
from thresher.db.outbox_store import Wanted
from thresher.db.postgres.arrays import bigint_array, text_literal
from thresher.db.postgres.cursor import BigintArray
from thresher.db.problem import DatabaseLost
from thresher.db.shape import MOST_HEADERS, Shape
from thresher.db.shape_columns import created, further_columns, mark_parts
from thresher.db.statements import statement

# Rows of bucket `b.bucket`. Not "=": see outbox_head.
_ONE = "i.bucket >= b.bucket AND i.bucket <= b.bucket"
_WINDOW = "i.id > %(last)s AND i.id <= %(upto)s AND i.bucket = ANY (%(buckets)s::smallint[])"
# Both ages are counted from the same point: the statement's own transaction.
_AGES = "pg_catalog.age(i.xmin) AS age, (SELECT pg_catalog.age(%(oldest_transaction)s::xid8::xid)) AS oldest_age"
# The array with lower bound 1, whatever its own is. An array of many dimensions or items is a flaw, and is not
# returned: a small one in the table may have a hundred million items.
_COUNTED = (
    f"CASE WHEN array_ndims(i.{{0}}) = 1 AND cardinality(i.{{0}}) <= {MOST_HEADERS} THEN i.{{0}}[:] ELSE '{{{{}}}}' END"
)
_STORED = f"CASE WHEN cardinality(i.{{0}}) <= {MOST_HEADERS} THEN i.{{0}} ELSE '{{{{}}}}' END"
# The column of a row's topic.
TOPIC = {Shape.THRESHER: "kafka_topic", Shape.GOHARVEST: "kafka_topic", Shape.DEIMOS: "topic"}
_ARRAYS = ("kafka_header_keys", "kafka_header_values")


def head_query(shape: Shape, outbox: TableName, *, marking: bool = False, sweeping: bool = False) -> str:
    """Return the statement that reads the head of each bucket.

    `marking` leaves out rows that the shard has marked already. `sweeping` leaves out young rows, and rows that a
    dispatcher has locked.
    """
    unclaimed = _unclaimed(shape, marking=marking, sweeping=sweeping)
    if shape is not Shape.THRESHER:
        return statement(f"{shape.prefix}_head", outbox, **_parts(unclaimed, order="i.id"))
    pick = _pick(outbox, mine=_ONE, unclaimed=unclaimed)
    return statement("outbox_head", outbox, pick=pick, lock=_lock(sweeping=sweeping))


def head_by_id_query(shape: Shape, outbox: TableName, *, marking: bool = False, sweeping: bool = False) -> str:
    """Return the statement that reads the shard's head by id over all buckets."""
    if shape is not Shape.THRESHER:
        return head_query(shape, outbox, marking=marking, sweeping=sweeping)
    pick = _pick(outbox, mine=_ONE, unclaimed=_unclaimed(shape, marking=marking, sweeping=sweeping))
    return statement("outbox_head_by_id", outbox, pick=pick, lock=_lock(sweeping=sweeping))


def window_query(outbox: TableName, *, counted: bool = False) -> str:
    """Return the statement that reads a window of ids, with each row's age. `counted`: arrays with lower bound 1."""
    pick = _pick(outbox, mine=_WINDOW, unclaimed=_unclaimed(Shape.THRESHER), more=f",\n       {_AGES}", counted=counted)
    return statement("outbox_head_window", outbox, pick=pick)


def require_same_table(flaw: str | None) -> None:
    """Raise `DatabaseLost` if recovery settled another table than this one: rows that were sent may be back in it.

    `flaw` is that of the first row: all rows of a statement are from one table.
    """
    if flaw == "replaced":
        raise DatabaseLost(
            "the outbox's table was replaced, or its content was (a restore, a TRUNCATE): the shard recovers first"
        )


def topic_head_query(shape: Shape, outbox: TableName, topic: str = "%(topic)s::text") -> str:
    """Return the statement that reads the oldest rows of one topic, in the buckets of one of its parts.

    `topic` is the expression for the topic.
    """
    if shape is not Shape.THRESHER:
        unclaimed = f"{_unclaimed(shape)}\n   AND {_topic(shape, topic)}"
        order = f"i.{TOPIC[shape]}, i.id"
        return statement(f"{shape.prefix}_head", outbox, **_parts(unclaimed, order=order))
    mine = f"{_topic(shape, topic)} AND i.bucket = ANY (%(buckets)s::smallint[])"
    return statement("outbox_topic_head", outbox, pick=_pick(outbox, mine=mine, unclaimed=_unclaimed(shape)))


def marked_values(wanted: Wanted) -> dict[str, Any]:
    """Return the parameters of a statement that marks a head, for these wanted rows."""
    return {
        "buckets": list(wanted.buckets),
        "rows": wanted.rows,
        "each": wanted.rows_per_bucket,
        "bytes": wanted.batch_bytes,
        "largest": wanted.largest_bytes,
        "held": text_literal(wanted.held_topics),
        "among": wanted.among,
        "hot_topics": [topic for topic, _ in wanted.hot_keys],
        "hot_keys": [key for _, key in wanted.hot_keys],
        "in_flight_ids": BigintArray(bigint_array(list(wanted.in_flight))),
        "in_flight_times": BigintArray(bigint_array(list(wanted.in_flight.values()))),
    }


def next_query(outbox: TableName) -> str:
    """Return the statement that finds a shard's first row after an id."""
    return statement("outbox_next", outbox, unclaimed=_not_in_flight(Shape.THRESHER))


def bounded_query(head: str, shape: Shape = Shape.THRESHER) -> str:
    """Return the statement of a head, bounded by bytes too."""
    return statement("relay_head_bounded", head=head, more=further_columns(shape, "h"))


def _parts(unclaimed: str, *, order: str) -> dict[str, str]:
    """Return the parts of a head of another shape than ours."""
    return {"unclaimed": unclaimed, "replaced": _replaced(), "order": order, "most_headers": str(MOST_HEADERS)}


def _topic(shape: Shape, topic: str) -> str:
    """Return the condition for rows of one topic. Not "=": see outbox_topic_head."""
    column = TOPIC[shape]
    return f"i.{column} >= {topic} AND i.{column} <= {topic}"


def _pick(outbox: TableName, *, mine: str, unclaimed: str, more: str = "", counted: bool = True) -> str:
    arrays = {column: (_COUNTED if counted else _STORED).format(column) for column in _ARRAYS}
    return statement(
        "outbox_pick",
        outbox,
        mine=mine,
        unclaimed=unclaimed,
        replaced=_replaced(),
        more=more,
        most_headers=str(MOST_HEADERS),
        **arrays,
    ).rstrip()


def _replaced() -> str:
    return statement("relay_replaced").strip()


def _lock(*, sweeping: bool) -> str:
    return f"\n{statement('relay_unlocked').rstrip()}" if sweeping else ""


def _unclaimed(shape: Shape, *, marking: bool = False, sweeping: bool = False) -> str:
    """Return the condition for unclaimed rows: not in flight, and not of a key that is left out.

    `marking`: not marked by this shard either. `sweeping`: not young either.
    """
    not_mine = [statement("relay_not_mine", None, **mark_parts(shape))] if marking else []
    aged = [statement("relay_aged", created=created(shape, "i"))] if sweeping else []
    parts = [*not_mine, *aged, _not_in_flight(shape), statement(f"{shape.prefix}_not_hot")]
    return "\n   AND ".join(part.strip() for part in parts)


def _not_in_flight(shape: Shape) -> str:
    return statement("relay_not_in_flight", created=created(shape, "i")).strip()
