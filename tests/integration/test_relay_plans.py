"""The relay's statements use the index that they were written for, with any statistics."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from thresher.db import TableName, statement
from thresher.db.outbox_store import Wanted
from thresher.db.postgres.arrow_session import UNSORTED
from thresher.db.postgres.control import control_table
from thresher.db.postgres.cursor import OwnCursor
from thresher.db.postgres.head_queries import bounded_query, head_by_id_query, head_query, next_query, window_query
from thresher.db.postgres.marks import PostgresMarks
from thresher.db.postgres.sessions import connect_as_configured
from thresher.db.shape_columns import created
from thresher.devstack.stack import Stack
from thresher.outbox import Shape, create_schema

OUTBOX = TableName(table="outbox")
ROWS = 20_000
BUCKETS = list(range(64))
PENDING, PRIMARY = "outbox_bucket_id_idx", "outbox_pkey"


@pytest.fixture(
    scope="module", params=["one key", "many keys", "rows since it was empty", "settled rows", "no statistics"]
)
def filled(request: pytest.FixtureRequest, stack: Stack) -> Iterator[str]:
    """Yield the data source of a filled outbox, for tests that change nothing in it."""
    name = "plans"
    dsn = stack.postgres.create_database(name)
    with psycopg.connect(dsn) as connection:
        create_schema(connection, OUTBOX)
        connection.execute(statement("outbox_dead_create", OUTBOX))
        # Otherwise autovacuum might gather the statistics that a test does without.
        connection.execute("ALTER TABLE outbox SET (autovacuum_enabled = false)")
    with connect_as_configured(dsn, "tests") as connection:
        fill(connection, request.param)
    yield dsn
    stack.postgres.drop_database(name)


@pytest.fixture
def session(filled: str) -> Iterator[psycopg.Connection[Any]]:
    with connect_as_configured(filled, "tests") as connection:
        yield connection


def fill(empty: psycopg.Connection[Any], kind: str) -> None:
    if kind == "rows since it was empty":
        empty.execute("VACUUM ANALYZE outbox")
    keys = 1 if kind == "one key" else 1000
    empty.execute(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value) "
        "SELECT 't', convert_to('k' || n %% %s, 'UTF8'), 'v' FROM generate_series(1, %s) n",
        [keys, ROWS],
    )
    if kind == "settled rows":
        empty.execute("UPDATE outbox SET dispatched_time = now() WHERE mod(id, 100) > 0")
    if kind in {"one key", "many keys", "settled rows"}:
        empty.execute("VACUUM ANALYZE outbox")


def indexes(node: dict[str, Any]) -> Iterator[str]:
    """Yield the indexes by which a plan reads the outbox, and the node type of a scan without an index."""
    if node.get("Relation Name") == "outbox" and node["Node Type"] != "ModifyTable":
        yield node.get("Index Name", node["Node Type"])
    for child in node.get("Plans", ()):
        yield from indexes(child)


def planned(session: psycopg.Connection[Any], query: str, parameters: Any) -> set[str]:
    return set(indexes(plan_of(session, query, parameters)))


def plan_of(session: psycopg.Connection[Any], query: str, parameters: Any) -> dict[str, Any]:
    text = psycopg.ClientCursor(session).mogrify(query, parameters)
    row = session.execute(f"EXPLAIN (FORMAT JSON) {text}").fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return plan


WANTED = {
    "buckets": BUCKETS,
    "held": [],
    "among": False,
    "hot_topics": [],
    "hot_keys": [],
    "largest": 1_000_000,
    "bytes": 1_000_000,
    "rows": 10_000,
    "outbox": "outbox",
    "table": None,
}
SETTLING = ("relay_settle_delete", "relay_settle_stamp", "relay_left_delete", "relay_left_stamp")


def test_every_statement_uses_its_index(session: psycopg.Connection[Any]) -> None:
    head = head_query(Shape.THRESHER, OUTBOX)
    bounded, by_id = bounded_query(head), head_by_id_query(Shape.THRESHER, OUTBOX)
    for each in (1, 300, 10_000):
        for in_flight in ([], list(range(10_000))):
            for query in (head, bounded, by_id, bounded_query(by_id)):
                plan = planned(session, query, {**WANTED, "each": each, **claimed(in_flight)})
                assert plan == {PENDING}, (each, len(in_flight))
    assert planned(session, statement("outbox_probe", OUTBOX).replace("$1", "%s"), [BUCKETS]) == {PENDING}
    for last in (0, ROWS // 2, ROWS - 10):
        parameters = {"buckets": BUCKETS, "last": last, **claimed(list(range(10_000)))}
        assert planned(session, next_query(OUTBOX), parameters) == {PENDING}, last
    for count in (1, 10_000):
        times = ["2026-01-01 12:00:00+00"] * count
        fates = {"kinds": ["k"] * count, "reasons": ["r"] * count, "attempts": [1] * count, "blocking": [False] * count}
        for name in (*SETTLING, "outbox_settle_dead"):
            query = statement(name, OUTBOX, created=created(Shape.THRESHER, "o")).replace(
                "%(ids)s", "%(ids)s::bigint[]"
            )
            query = query.replace("%(create_times)s", "%(create_times)s::timestamptz[]")
            plan = planned(session, query, {"ids": list(range(count)), "create_times": times, **fates})
            assert plan == {PRIMARY}, (name, count)


def test_a_sweep_uses_the_index_of_pending_rows(session: psycopg.Connection[Any]) -> None:
    for head in (head_query, head_by_id_query):
        query = bounded_query(head(Shape.THRESHER, OUTBOX, marking=True, sweeping=True))
        for each in (1, 300, 10_000):
            wanted = {**WANTED, "each": each, "min_age": 5.0, "leader": uuid.UUID(int=1), **claimed([])}
            assert planned(session, query, wanted) == {PENDING}, each


def test_marked_rows_are_looked_up_by_a_hash(session: psycopg.Connection[Any]) -> None:
    session.execute(statement("control_create", control_table(None)))
    marks = PostgresMarks(session, OUTBOX, Shape.THRESHER, "relay", str(uuid.uuid4()))
    wanted = Wanted(buckets=BUCKETS, rows=10_000, batch_bytes=1_000_000, largest_bytes=1_000_000)
    query, values = marks.statement(wanted, uuid.uuid4())
    (plan,) = OwnCursor(session).execute("EXPLAIN (FORMAT JSON) " + query, values).fetchone() or ()
    assert "(ANY (id = (hashed" in json.dumps(plan)


@pytest.mark.parametrize("shards", [1, 2, 8, 64])
def test_a_window_is_read_by_bitmap_without_other_shards_rows(session: psycopg.Connection[Any], shards: int) -> None:
    as_the_arrow_session(session)
    parameters = {**WANTED, "buckets": BUCKETS[::shards], "oldest_transaction": "700"}
    for in_flight in ([], list(range(10_000))):
        for last, upto in ((0, 500), (5_000, 15_000), (19_000, 1_000_000)):
            for query in (window_query(OUTBOX), window_query(OUTBOX, counted=True)):
                session.execute(statement("relay_planned"), {"by_pages": True})
                wanted = {**parameters, **claimed(in_flight), "last": last, "upto": upto}
                (pages,) = nodes(plan_of(session, query, wanted), "Bitmap Heap Scan")
                (index,) = pages["Plans"][:1]
                assert index["Node Type"] == "Bitmap Index Scan"
                # With two shards or fewer, the primary key serves as well.
                assert index["Index Name"] in ({PENDING} if shards > 2 else {PENDING, PRIMARY})
                assert str(last) in index["Index Cond"]
                assert str(upto) in index["Index Cond"]
                assert "Sort" not in json.dumps(plan_of(session, query, wanted))


def claimed(ids: list[int]) -> dict[str, list[int]]:
    """Return the parameters for rows in flight, all with one create time."""
    return {"in_flight_ids": ids, "in_flight_times": [1_700_000_000_000_000] * len(ids)}


def as_the_arrow_session(session: psycopg.Connection[Any]) -> None:
    for option in UNSORTED.replace("-c ", "").split():
        session.execute(f"SET {option}")


def nodes(node: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return a plan's nodes of this kind that read the outbox."""
    own = [node] if node["Node Type"] == kind and node.get("Relation Name") == "outbox" else []
    return own + [found for child in node.get("Plans", ()) for found in nodes(child, kind)]
