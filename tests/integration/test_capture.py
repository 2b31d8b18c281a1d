"""Capture on real servers and a real Spark: rows, offsets, dead records and refusals."""

import uuid
from typing import Any

import psycopg
import pytest
from confluent_kafka import Producer

from tests.capture.captured import COLUMNS, PATIENCE_SECONDS, CapturedOrders, captured, ended_by
from tests.processes import eventually
from thresher.capture.adopting import adopt
from thresher.capture.capture import Capture
from thresher.capture.problem import CaptureRefused
from thresher.capture.rewinding import rewind
from thresher.capture.stepping_over import step_over, stuck_partitions
from thresher.capture.workload import CaptureWorkload
from thresher.core.errors import Superseded
from thresher.devstack.stack import Stack
from thresher.kafka.partition_watch import PositionLost
from thresher.kafka.problem import BrokerRefused
from thresher.kafka.unreadable_batch import Unreadable
from thresher.service.pages import StatusPages
from thresher.spark.session.session import Session


@pytest.fixture
def orders(stack: Stack, spark: Session, dsn: str) -> CapturedOrders:
    return CapturedOrders(stack.kafka.bootstrap, dsn)


def test_records_become_rows_and_a_restart_resumes(orders: CapturedOrders) -> None:
    orders.publish(*((f"o{number}", number) for number in range(50)))
    with captured(orders, shards=2) as capture:
        orders.await_rows({f"o{number}": number for number in range(50)})
        orders.publish(("o1", 100), ("o2", None), ("new", 7))
        wanted = {f"o{number}": number for number in range(50) if number != 2} | {"o1": 100, "new": 7}
        orders.await_rows(wanted)
        eventually(lambda: capture.captured == 53, PATIENCE_SECONDS)
    assert sum(orders.stored().values()) == 53
    orders.publish(("later", 1))
    with captured(orders) as capture:
        orders.await_rows({**wanted, "later": 1})
        eventually(lambda: capture.captured == 1, PATIENCE_SECONDS)


def test_aborted_records_are_no_rows_and_offsets_pass_them(orders: CapturedOrders) -> None:
    with captured(orders):
        orders.publish(("a", 1))
        orders.publish_aborted(*((f"x{number}", 1) for number in range(20)))
        ends = orders.admin.topics(orders.topic)[0].records
        eventually(lambda: sum(orders.stored().values()) == ends, PATIENCE_SECONDS, lambda: f"{orders.stored()} {ends}")
        assert orders.rows() == {"a": 1}


def test_bad_records_become_dead_while_others_are_applied(orders: CapturedOrders) -> None:
    orders.publish(("a", 1), ("bad", b"{"), ("b", 2), ("worse", b'{"total": "x"}'), ("c", 3))
    with captured(orders) as capture:
        orders.await_rows({"a": 1, "b": 2, "c": 3})
        eventually(lambda: len(orders.dead()) == 2, PATIENCE_SECONDS)
        assert dict(orders.dead()) == {b"bad": "malformed", b"worse": "type"}
        eventually(lambda: capture.process_counts.total("dead") == 2, PATIENCE_SECONDS)


def test_partitions_that_are_added_are_captured_too(orders: CapturedOrders) -> None:
    with captured(orders, shards=2):
        orders.publish(("a", 1), partition=0, timestamp=1_000)
        orders.await_rows({"a": 1})
        orders.widen(5)
        orders.publish(("a", 2), ("b", 2), partition=4, timestamp=2_000)
        orders.await_rows({"a": 2, "b": 2})
        orders.publish(("a", 3), ("c", 3), partition=0, timestamp=1_500)
        orders.await_rows({"a": 2, "b": 2, "c": 3})


def test_a_handler_and_a_decoder_are_found_by_import_path(orders: CapturedOrders) -> None:
    orders.publish(("a", 1), ("a", 2))
    orders.keys["topics"] = {orders.topic: {"handler": "tests.capture.functions:count_orders"}}
    with captured(orders):
        orders.await_rows({"a": 3})
    decoding = {"table": "orders", "columns": COLUMNS, "decoder": "tests.capture.functions:comma_separated"}
    orders.keys["topics"] = {orders.topic: decoding}
    orders.publish(("b", b"5,hello"), ("a", b""))
    with captured(orders):
        orders.await_rows({"b": 5})
    assert orders.query("SELECT note FROM orders") == [("hello",)]


def test_several_topics_go_to_their_tables(orders: CapturedOrders, stack: Stack) -> None:
    other = f"{orders.topic}.notes"
    orders.admin.create_topic(other, partitions=1)
    with psycopg.connect(orders.dsn) as connection:
        connection.execute(
            "CREATE TABLE notes (a int, b text, thresher_partition int, thresher_offset bigint, "
            "thresher_timestamp bigint, UNIQUE (b, a))"
        )
    orders.keys["topics"][other] = {"table": "notes", "key": ["a", "b"], "columns": ["a", "b"]}
    with captured(orders):
        orders.publish(("a", 1))
        orders.producer.produce(other, b'{"a": 4, "b": "x"}')
        orders.producer.flush()
        orders.await_rows({"a": 1})
        eventually(lambda: orders.query("SELECT a, b FROM notes") == [(4, "x")], PATIENCE_SECONDS)


def test_capture_ends_when_retention_has_passed_its_offset(orders: CapturedOrders) -> None:
    orders.publish(*((f"o{number}", 1) for number in range(10)), partition=0)
    with captured(orders):
        eventually(lambda: orders.stored().get(0) == 10, PATIENCE_SECONDS)
    orders.publish(*((f"o{number}", 2) for number in range(10)), partition=0)
    orders.remove_before(0, 15)
    error = ended_by(orders)
    assert isinstance(error, PositionLost)
    assert error.exit_code == 4
    assert "begins at 15, and was captured up to 10: 5 offsets were removed" in str(error)
    assert "thresher capture adopt" in str(error)


def test_a_new_capture_begins_with_the_first_record(orders: CapturedOrders) -> None:
    for partition in range(3):
        orders.publish(("old", 1), (f"o{partition}", 1), partition=partition)
        orders.remove_before(partition, 1)
    with captured(orders, shards=3):
        orders.await_rows({f"o{partition}": 1 for partition in range(3)})


def test_all_partitions_get_offsets_before_any_shard_reads(orders: CapturedOrders) -> None:
    """Otherwise a late shard would take its partition for an added one whose first records are missing."""
    orders.publish(("a", 1), ("b", 1), partition=2)
    orders.remove_before(2, 1)
    assert CaptureWorkload(orders.settings).take_over(str(uuid.uuid4()), lambda: True)
    assert orders.stored() == {0: 0, 1: 0, 2: 1}


def test_capture_ends_when_its_topic_was_recreated(orders: CapturedOrders) -> None:
    orders.publish(("a", 1))
    with captured(orders):
        orders.await_rows({"a": 1})
    orders.make_anew()
    orders.publish(("a", 2))
    error = ended_by(orders)
    assert isinstance(error, PositionLost)
    assert "deleted and created again" in str(error)
    assert orders.rows() == {"a": 1}


def test_a_table_with_rows_of_another_topic_is_refused(orders: CapturedOrders) -> None:
    orders.publish(*(("a", number) for number in range(5)), partition=0)
    with captured(orders):
        orders.await_rows({"a": 4})
    other = f"{orders.topic}.v2"
    orders.admin.create_topic(other, partitions=1)
    orders.producer.produce(other, b'{"total": 777}', "a")
    orders.producer.flush()
    orders.keys["topics"] = {other: orders.keys["topics"][orders.topic]}
    error = ended_by(orders)
    assert isinstance(error, CaptureRefused)
    assert "thresher capture adopt" in str(error)
    adopt(orders.settings)
    with captured(orders):
        orders.await_rows({"a": 777})


def test_reading_restarts_at_a_stored_offset_that_went_back(orders: CapturedOrders) -> None:
    orders.publish(*((f"o{number}", 1) for number in range(10)), partition=0)
    with captured(orders) as capture:
        eventually(lambda: orders.stored().get(0) == 10, PATIENCE_SECONDS)
        # As after a restore of the database.
        with psycopg.connect(orders.dsn) as connection:
            connection.execute("UPDATE thresher_capture_offsets SET next_offset = 4 WHERE kafka_partition = 0")
            connection.execute("DELETE FROM orders WHERE id = 'o7'")
        orders.publish(("new", 1), partition=0)
        eventually(lambda: orders.stored().get(0) == 11, PATIENCE_SECONDS, lambda: str(orders.stored()))
        eventually(lambda: capture.process_counts.total("started_over") == 1, PATIENCE_SECONDS)
        assert orders.rows() == {f"o{number}": 1 for number in range(10)} | {"new": 1}


def test_a_missing_column_or_topic_ends_capture(orders: CapturedOrders) -> None:
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders DROP COLUMN thresher_offset")
    error = ended_by(orders)
    assert isinstance(error, CaptureRefused)
    assert error.exit_code == 4
    assert 'ADD COLUMN IF NOT EXISTS "thresher_offset" BIGINT' in str(error)
    orders.keys["topics"] = {"nowhere": orders.keys["topics"][orders.topic]}
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders ADD COLUMN thresher_offset bigint")
    assert isinstance(ended_by(orders), BrokerRefused)


def test_a_dropped_column_ends_a_running_capture_with_the_statement(orders: CapturedOrders) -> None:
    capture = Capture(orders.keys)
    capture.start()
    orders.publish(("a", 1))
    orders.await_rows({"a": 1})
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("ALTER TABLE orders DROP COLUMN note")
    orders.publish(("a", 2))
    with pytest.raises(CaptureRefused, match=r'ALTER TABLE "public"\."orders" ADD COLUMN "note" text;'):
        capture.wait(PATIENCE_SECONDS)
    capture.stop()


def test_a_newer_capture_ends_an_older_one(orders: CapturedOrders) -> None:
    older = Capture(orders.keys)
    older.start()
    eventually(lambda: orders.query("SELECT count(*) FROM thresher_captures") == [(1,)], PATIENCE_SECONDS)
    with psycopg.connect(orders.dsn) as connection:
        connection.execute("UPDATE thresher_captures SET term = 'another'")
    with pytest.raises(Superseded, match="another process has taken over the capture shop"):
        older.wait(PATIENCE_SECONDS)
    older.stop()


def test_a_batch_that_cannot_be_read_is_an_alarm_until_it_is_stepped_over(
    stack: Stack, spark: Session, dsn: str
) -> None:
    small = {"receive.message.max.bytes": 10_000_000, "fetch.max.bytes": 1_100_000}
    orders = CapturedOrders(stack.kafka.bootstrap, dsn, partitions=2, consumer=small)
    packing = Producer({**orders.eyes, "compression.type": "zstd", "message.max.bytes": 1_000_000_000})
    orders.publish(("a", 1), partition=0)
    for _ in range(2):
        packing.produce(orders.topic, bytes(20_000_000), "lost", 0)
        assert packing.flush(60) == 0
    orders.publish(("b", 2), partition=0)
    orders.publish(("c", 3), partition=1)
    place = f"{orders.topic}/0"
    with captured(orders) as capture:
        orders.await_rows({"a": 1, "c": 3})
        eventually(lambda: place in capture.alarms, PATIENCE_SECONDS)
        assert "the batch at offset 1 cannot be decompressed" in capture.alarms[place]
        assert "thresher capture step-over" in capture.alarms[place]
        (stuck,) = stuck_partitions(orders.settings)
        assert (stuck.place, stuck.batch) == ((orders.topic, 0), Unreadable(first=1, after=3))
        step_over(orders.settings, stuck)
        with pytest.raises(CaptureRefused, match="has moved meanwhile"):
            step_over(orders.settings, stuck)
        orders.await_rows({"a": 1, "b": 2, "c": 3})
        eventually(lambda: not capture.alarms, PATIENCE_SECONDS)
    assert list(stuck_partitions(orders.settings)) == []
    # A rewind meets the batch again, and says so.
    done = rewind(orders.settings, None)
    assert (done.records, done.failed) == (3, 0)
    assert done.unreadable == [f"{place}: offsets 1 to 1", f"{place}: offsets 2 to 2"]


def test_status_and_metrics_show_the_topics(orders: CapturedOrders) -> None:
    orders.publish(("a", 1), ("bad", b"{"))
    with captured(orders) as capture:
        eventually(
            lambda: (
                capture.process_counts.total("captured") == 2
                and (found := capture.snapshot()) is not None
                and found.shards[0].gauges.get("lag") == 0
            ),
            PATIENCE_SECONDS,
        )
        board = StatusPages(capture)
        try:
            pages: dict[str, Any] = {path: page() for path, page in board.pages.items()}
        finally:
            board.close()
        text = str(pages["/metrics"])
        assert f'thresher_captured_records_total{{capture="shop",topic="{orders.topic}"}} 2.0' in text
        assert 'thresher_dead_records_by_kind_total{capture="shop",kind="malformed"} 1.0' in text
        assert f'thresher_capture_lag{{capture="shop",topic="{orders.topic}"}} 0.0' in text
        assert pages["/status"]["topics"] == {orders.topic: {"captured": 2, "dead": 1, "lag": 0}}
