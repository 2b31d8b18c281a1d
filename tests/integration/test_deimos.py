"""Deimos' tables on real servers: rows written by Rails are relayed, become dead and are replayed; schema checks."""

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.relay.relaying import Place, taken_over
from thresher.cli.dead import replay
from thresher.db import TableName, statement
from thresher.db.control import NewControlRow
from thresher.db.outbox_store import DeadFate, Fates, Wanted
from thresher.db.postgres.store import PostgresStore
from thresher.db.problem import DatabaseRefused
from thresher.outbox import (
    InvalidMessage,
    Limits,
    Message,
    Outbox,
    SchemaRefused,
    Shape,
    check_schema,
    create_schema,
    ddl,
)
from thresher.outbox.shape import BUCKETS, bucket_of
from thresher.publisher import Publisher
from thresher.publisher.kafka_backend import KafkaBackend
from thresher.relay.settings import Delivery

NAME = TableName(table="kafka_messages")
# The tables that Deimos' migration makes with Rails 7.
RAILS = """
CREATE TABLE kafka_messages (
  id bigserial PRIMARY KEY, topic character varying NOT NULL, message bytea, key bytea, partition_key character varying,
  created_at timestamp(6) without time zone NOT NULL, updated_at timestamp(6) without time zone NOT NULL
);
CREATE INDEX index_kafka_messages_on_topic_and_id ON kafka_messages (topic, id);
CREATE TABLE kafka_topic_info (
  id bigserial PRIMARY KEY, topic character varying NOT NULL, locked_by character varying,
  locked_at timestamp(6) without time zone, error boolean DEFAULT false NOT NULL, retries integer DEFAULT 0 NOT NULL,
  last_processed_at timestamp(6) without time zone
);
CREATE UNIQUE INDEX index_kafka_topic_info_on_topic ON kafka_topic_info (topic);
"""
INSERT = (
    "INSERT INTO kafka_messages (topic, message, key, partition_key, created_at, updated_at)"
    " VALUES (%s, %s, %s, %s, now() AT TIME ZONE 'UTC', now() AT TIME ZONE 'UTC')"
)
# Results of Ruby's Zlib.crc32, modulo the topic's 3 partitions.
PARTITIONS = {b"abc": 891_568_578 % 3, b"123456789": 3_421_780_262 % 3, b"order-1": 3_769_860_079 % 3, b"": 0}


@pytest.fixture
def place(stack: Any, spark: Any, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix, shape=Shape.DEIMOS, table="kafka_messages")


@pytest.fixture
def rails(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    connection.execute(RAILS)
    return connection


def test_rows_of_rails_arrive_once_in_ruby_kafkas_partition(
    stack: Any, spark: Any, dsn: str, topic_prefix: str
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(RAILS)
        connection.execute("ALTER TABLE kafka_topic_info ADD COLUMN token BIGINT NOT NULL DEFAULT 0")
    at = Place(stack, dsn, topic_prefix, shape=Shape.DEIMOS, table="kafka_messages")
    written: list[tuple[Any, ...]] = [(None, b"tombstone", "abc")]
    for key in PARTITIONS:
        written += [(b"by partition key", b"own " + key, key.decode()), (b"by key", key, None)]
    written += [(b"empty", b"", None), (b"anywhere", None, None)] * 20
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.executemany(INSERT, [(at.topic, *row) for row in written])
    with at.relaying(shards=1) as relaying:
        found = at.read(len(written))
        relaying.until(lambda: at.pending() == 0)
    assert at.dead() == []
    where = {(message.value(), message.key()): message.partition() for message in found}
    for key, partition in PARTITIONS.items():
        assert where[b"by partition key", b"own " + key] == partition
        assert where[b"by key", key] == partition
    assert where[None, b"tombstone"] == PARTITIONS[b"abc"]
    assert {message.partition() for message in found if message.value() == b"empty"} == {0}
    assert {message.partition() for message in found if message.value() == b"anywhere"} == {0, 1, 2}


@pytest.mark.parametrize("delivery", Delivery)
def test_order_is_kept_within_a_partition_key(place: Place, delivery: Delivery) -> None:
    keys = [f"p{number % 9}" for number in range(360)]

    def messages(numbers: range) -> Iterator[Message]:
        for number in numbers:
            yield Message(
                topic=place.topic, key=f"{keys[number]} {number}", value=f"{number}", partition_key=keys[number]
            )

    place.stash(*messages(range(200)))
    with place.relaying(delivery=delivery, shards=3) as relaying:
        place.stash(*messages(range(200, 360)))
        found = place.read(360)
        relaying.until(lambda: place.pending() == 0)
    for key in set(keys):
        mine = [message for message in found if (message.key() or b"").startswith(f"{key} ".encode())]
        assert len({message.partition() for message in mine}) == 1
        assert [int(message.value() or b"") for message in mine] == [n for n, each in enumerate(keys) if each == key]


def test_a_dead_row_is_replayed_with_its_partition_key(place: Place) -> None:
    place.sql(INSERT, "not a topic", b"v", b"k", "123456789")
    with place.relaying(shards=1) as relaying:
        relaying.until(lambda: relaying.up and len(place.dead()) == 1)
        assert place.dead()[0][1:3] == ("malformed", "'not a topic' cannot be a topic's name")
        place.sql("UPDATE kafka_messages_dead SET kafka_topic = %s", place.topic)
        replay(every=True, ds=place.dsn, outbox="kafka_messages", shape=Shape.DEIMOS)
        (found,) = place.read(1)
        relaying.until(lambda: place.pending() == 0)
    assert (found.key(), found.value(), found.partition()) == (b"k", b"v", PARTITIONS[b"123456789"])


def test_marks_need_their_column(stack: Any, dsn: str, topic_prefix: str) -> None:
    at = Place(stack, dsn, topic_prefix, shape=Shape.DEIMOS, table="kafka_messages")
    at.sql("ALTER TABLE kafka_messages DROP COLUMN session_id")
    with pytest.raises(DatabaseRefused, match="no column session_id"):
        taken_over(at.settings(delivery=Delivery.AT_LEAST_ONCE))
    taken_over(at.settings())


# Keys and partition keys of rows 1 to 6.
ROWS = (("a", "p"), ("b", "p"), ("p", None), ("a", "q"), ("c", None), (None, None))


@pytest.fixture
def rows(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        create_schema(connection, NAME, Shape.DEIMOS)
        for key, partition_key in ROWS:
            connection.execute(INSERT, ["t", b"v", key and key.encode(), partition_key])


@pytest.mark.usefixtures("rows")
def test_a_row_is_in_its_partition_keys_bucket(dsn: str) -> None:
    buckets = [bucket_of(b"p")] * 3 + [bucket_of(b"q"), bucket_of(b"c"), 6]
    with closing(PostgresStore(dsn, NAME, Shape.DEIMOS).session("tests", locate=True)) as session:
        session.create_tables()
        assert session.backlog().by_bucket == Counter(buckets)
        for bucket in range(BUCKETS):
            assert bool(session.probe([bucket]).occupied()) == (bucket in buckets)
        with closing(
            PostgresStore(dsn, NAME, Shape.DEIMOS).pending_reader("tests", since=session.incarnation().since)
        ) as reader:
            for bucket in set(buckets):
                found = reader.few(Wanted(buckets=[bucket], rows=10, batch_bytes=10**6, largest_bytes=10**6))
                assert [row[0] for row in found] == [id_ for id_, each in enumerate(buckets, 1) if each == bucket]
        estimate = statement("deimos_estimate", session.outbox)
        assert dict(session.connection.execute(estimate, [100]).fetchall()) == Counter(buckets)


@pytest.mark.usefixtures("rows")
def test_oversized_messages_and_partition_keys_stay_in_the_database(dsn: str) -> None:
    large = "x" * 2_000
    with psycopg.connect(dsn) as connection:
        connection.execute(INSERT, ["t", b"v", b"k", large])
        connection.execute(INSERT, ["t", large.encode(), b"k", "p"])
    with closing(PostgresStore(dsn, NAME, Shape.DEIMOS).session("tests", locate=True)) as session:
        session.create_tables()
        since = session.incarnation().since
    wanted = Wanted(buckets=range(BUCKETS), rows=10, batch_bytes=10**6, largest_bytes=1_000)
    with closing(PostgresStore(dsn, NAME, Shape.DEIMOS).pending_reader("tests", since=since)) as reader:
        for bounded in (True, False):
            found = reader.by_buckets(wanted, bounded=bounded).to_pylist()
            assert [row["flaw"] for row in found] == [None] * len(ROWS) + ["too-large"] * 2
            assert [(row["value"], row["partition_key"]) for row in found[-2:]] == [(b"v", None), (None, b"p")]


@pytest.mark.usefixtures("rows")
def test_a_blocking_row_keeps_its_partition_key_waiting(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        ((at,),) = connection.execute("SELECT created_at FROM kafka_messages WHERE id = 1").fetchall()
    moment = (at.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    with closing(PostgresStore(dsn, NAME, Shape.DEIMOS).session("tests", locate=True)) as session:
        session.create_tables()
        term = str(uuid.uuid4())
        session.control.insert(
            NewControlRow(name="r", outbox="o", outbox_id=term, system_id="s", term=term, mode="m", shards=1)
        )
        fate = DeadFate(1, moment, "rejected", "a reason", 1, True)
        assert session.settlement.settle(Fates(ids=[], create_times=[], dead=[fate])) == 1
        wanted = Wanted(buckets=range(BUCKETS), rows=10, batch_bytes=10**6, largest_bytes=10**6)

        def marked(**changes: Any) -> list[int]:
            return [row[0] for row in session.marks("r", term).mark(replace(wanted, **changes), uuid.uuid4())]

        assert marked() == [4, 5, 6]
        assert marked(hot_keys=[("t", b"q"), ("t", b"c")]) == [6]
        assert session.dead_rows.replay() == 1
        assert marked() == [1, 2, 3, 4, 5, 6]
    with psycopg.connect(dsn) as connection:
        rows = connection.execute("SELECT key, partition_key FROM kafka_messages WHERE id = 1").fetchall()
    assert rows == [(b"a", "p")]


@pytest.mark.parametrize("many", [False, True])
def test_timestamps_are_the_servers_time_in_utc(connection: psycopg.Connection[Any], many: bool) -> None:
    create_schema(connection, NAME, Shape.DEIMOS)
    connection.execute("SET TimeZone = 'Asia/Tokyo'")
    outbox, message = Outbox("kafka_messages", shape=Shape.DEIMOS), Message(topic="t", partition_key="p")
    outbox.stash_many(connection, [message]) if many else outbox.stash(connection, message)
    late = "SELECT clock_timestamp() - created_at AT TIME ZONE 'UTC', clock_timestamp() - updated_at AT TIME ZONE 'UTC'"
    ((created, updated),) = connection.execute(f"{late} FROM kafka_messages".encode()).fetchall()
    assert timedelta(0) <= created < timedelta(minutes=1)
    assert timedelta(0) <= updated < timedelta(minutes=1)


def test_the_writer_takes_tables_of_rails(rails: psycopg.Connection[Any]) -> None:
    outbox = Outbox("kafka_messages", shape=Shape.DEIMOS)
    outbox.stash(rails, Message(topic="t", key=b"\xff", value="v", partition_key="p"))
    outbox.stash_many(rails, [Message(topic="t")])
    rows = rails.execute("SELECT topic, key, message, partition_key FROM kafka_messages ORDER BY id").fetchall()
    assert rows == [("t", b"\xff", b"v", "p"), ("t", None, None, None)]


def test_a_refused_message_leaves_the_transaction_usable(rails: psycopg.Connection[Any]) -> None:
    outbox = Outbox("kafka_messages", shape=Shape.DEIMOS, limits=Limits(message_bytes=100), event_ids=True)
    with pytest.raises(InvalidMessage, match="headers"):
        outbox.stash(rails, Message(topic="t"))
    assert rails.execute("SELECT count(*) FROM kafka_messages").fetchone() == (0,)


def test_a_publisher_passes_partition_keys_on(rails: psycopg.Connection[Any]) -> None:
    with Publisher(outbox=Outbox("kafka_messages", shape=Shape.DEIMOS), backend="outbox") as publisher:
        publisher.publish(Message(topic="t", key="k", value="v", partition_key="p"), rails)
    rows = rails.execute("SELECT topic, key, message, partition_key FROM kafka_messages").fetchall()
    assert rows == [("t", b"k", b"v", "p")]


def test_kafkas_backends_refuse_partition_keys() -> None:
    backend = KafkaBackend({"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 100}, waits=True)
    with pytest.raises(InvalidMessage, match="only an outbox in Deimos' shape"):
        backend.publish([Message(topic="t"), Message(topic="t", partition_key="p")], None)


# The schema


def test_a_check_says_how_to_repair_tables_of_rails(rails: psycopg.Connection[Any]) -> None:
    found = check_schema(rails, NAME, Shape.DEIMOS).findings
    assert [(each.severity, each.subject) for each in found] == [
        ("differs", "column session_id"),
        ("differs", "table"),
        # A relay without topic locks does not use it.
        ("differs", '"kafka_topic_info", column token'),
    ]
    for finding in (found[0], found[2]):
        assert "topic locks need it: ALTER TABLE " in finding.detail
        rails.execute(finding.detail.partition(": ")[2].encode())
    left = check_schema(rails, NAME, Shape.DEIMOS)
    assert left.usable
    assert [finding.subject for finding in left.findings] == ["table"]


@pytest.mark.parametrize(
    ("change", "severity", "subject", "detail"),
    [
        (
            "ALTER TABLE kafka_messages DROP created_at",
            "breaks",
            "column created_at",
            "missing; it should be timestamp",
        ),
        (
            "ALTER TABLE kafka_messages DROP updated_at",
            "breaks",
            "column updated_at",
            "missing; it should be timestamp",
        ),
        ("ALTER TABLE kafka_messages DROP partition_key", "breaks", "column partition_key", "missing"),
        ("ALTER TABLE kafka_messages ALTER created_at TYPE timestamptz", "breaks", "column created_at", "its type is"),
        ("ALTER TABLE kafka_messages ALTER created_at DROP NOT NULL", "breaks", "column created_at", "allows NULL"),
        ("ALTER TABLE kafka_messages ALTER key SET NOT NULL", "breaks", "column key", "messages without it exist"),
        ("ALTER TABLE kafka_messages ALTER session_id TYPE varchar(9)", "breaks", "column session_id", "its type is"),
        ("ALTER TABLE kafka_messages ALTER topic TYPE varchar(255)", "differs", "column topic", "its type is"),
        ("ALTER TABLE kafka_messages ALTER updated_at DROP NOT NULL", None, "", ""),
        ("ALTER TABLE kafka_messages ALTER created_at TYPE timestamp(0), ADD more TEXT", None, "", ""),
        ("ALTER TABLE kafka_topic_info ADD more TEXT", None, "", ""),
        ("DROP TABLE kafka_topic_info", "breaks", '"kafka_topic_info"', "no such table"),
        (
            "ALTER TABLE kafka_topic_info ALTER token DROP DEFAULT",
            "breaks",
            '"kafka_topic_info", column token',
            "no default",
        ),
        ("DROP INDEX kafka_topic_info_topic_idx", "breaks", '"kafka_topic_info", index', "two locks"),
        (
            "DROP TABLE kafka_topic_info; CREATE VIEW kafka_topic_info AS SELECT 1",
            "breaks",
            '"kafka_topic_info"',
            "it is a view",
        ),
    ],
)
def test_a_check_names_every_column_that_does_not_fit(
    connection: psycopg.Connection[Any], change: str, severity: str | None, subject: str, detail: str
) -> None:
    create_schema(connection, NAME, Shape.DEIMOS)
    connection.execute(change.encode())
    found = check_schema(connection, NAME, Shape.DEIMOS).findings
    assert [(each.severity, each.subject) for each in found] == ([] if severity is None else [(severity, subject)])
    assert all(detail in each.detail for each in found)


def test_a_missing_column_is_added_by_the_printed_statement(connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, NAME, Shape.DEIMOS)
    connection.execute("INSERT INTO kafka_messages (topic) VALUES ('t')")
    connection.execute("ALTER TABLE kafka_messages DROP created_at")
    (finding,) = check_schema(connection, NAME, Shape.DEIMOS).findings
    connection.execute(finding.detail.partition(": ")[2].encode())
    assert check_schema(connection, NAME, Shape.DEIMOS).findings == ()


def test_a_topic_has_one_lock(connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, NAME, Shape.DEIMOS)
    connection.execute("INSERT INTO kafka_topic_info (topic) VALUES ('t')")
    with pytest.raises(psycopg.errors.UniqueViolation), connection.transaction():
        connection.execute("INSERT INTO kafka_topic_info (topic) VALUES ('t')")
    connection.execute("DROP INDEX kafka_topic_info_topic_idx; CREATE INDEX ON kafka_topic_info (topic)")
    (finding,) = check_schema(connection, NAME, Shape.DEIMOS).findings
    assert "two locks" in finding.detail


def test_only_a_missing_table_is_created(connection: psycopg.Connection[Any]) -> None:
    create_schema(connection, NAME, Shape.DEIMOS)
    connection.execute("DROP TABLE kafka_topic_info")
    assert not create_schema(connection, NAME, Shape.DEIMOS)
    assert create_schema(connection, TableName(table="another"), Shape.DEIMOS)
    assert check_schema(connection, NAME, Shape.DEIMOS).findings == ()


def test_a_lock_table_that_does_not_fit_is_refused(rails: psycopg.Connection[Any]) -> None:
    rails.execute("ALTER TABLE kafka_topic_info DROP COLUMN retries")
    with pytest.raises(SchemaRefused, match="ADD COLUMN retries INTEGER NOT NULL DEFAULT 0"):
        create_schema(rails, NAME, Shape.DEIMOS)


def test_both_tables_are_printed_for_the_outboxs_schema() -> None:
    printed = ddl(TableName(table="kafka_messages", schema="app"), Shape.DEIMOS)
    assert re.findall(r"CREATE TABLE (\S+)", printed) == ['"app"."kafka_messages"', '"app"."kafka_topic_info"']


def test_the_pages_example_works(connection: psycopg.Connection[Any]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "deimos.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    create_schema(connection, NAME, Shape.DEIMOS)
    connection.execute("CREATE TABLE orders (id int)")
    names: dict[str, Callable[..., None]] = {}
    exec(compile(program, "docs/deimos.md", "exec"), names)  # noqa: S102 - our own page
    names["place"](connection, {"id": 7, "customer": "c1"})
    rows = connection.execute("SELECT topic, key, partition_key FROM kafka_messages").fetchall()
    assert rows == [("orders", b"7", "c1")]
