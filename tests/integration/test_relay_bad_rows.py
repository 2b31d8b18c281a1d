"""Bad rows at random places among good ones, most of them written without our writer: each becomes dead with a reason,
and every other row arrives once and in order."""

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from tests.faults.patient import PRODUCER
from tests.relay.relaying import Place
from thresher.delivery.rules import Poison
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session

ROWS = 5_000
SEED = 6
# The client's limit for key and value together; and the largest value with a key of two bytes for a topic that allows
# record batches of 20,000 bytes.
CLIENT_BYTES = 1_000_000 - 36
NARROW_BYTES = 20_000
NARROW_VALUE_BYTES = NARROW_BYTES - 61 - 13
# A row that comes during the recovery after a refusal waits for it, longer on a busy machine.
RECOVERED_SECONDS = 8.0
# Rows of an existing topic are looked for twice a second, and the cluster is asked for its topics every two.
FOUND_SECONDS = 10.0


@dataclass
class Stored:
    """A row as SQL stores it. `kind` is the expected dead-letter kind; None for a good row."""

    kind: str | None
    topic: str
    key: bytes | None
    value: bytes | None
    header_keys: str = "{}"
    header_values: str = "{}"
    partition: int | None = None
    timestamp: str | None = None
    id: int = field(default=0, compare=False)

    def columns(self) -> tuple[Any, ...]:
        return (
            self.topic, self.key, self.value, self.header_keys, self.header_values, self.partition, self.timestamp,
        )  # fmt: skip


@pytest.fixture
def at(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


def test_bad_rows_are_dead_and_good_ones_arrive_in_order(at: Place) -> None:
    draw = random.Random(SEED)
    narrow, long = f"{at.prefix}narrow", at.prefix.ljust(249, "x")
    at.admin.create_topic(narrow, config={"max.message.bytes": str(NARROW_BYTES)})
    at.admin.create_topic(long)
    # With a wider column, rows may have longer names than Kafka allows for topics.
    at.sql("ALTER TABLE outbox ALTER COLUMN kafka_topic TYPE text")
    rows = [Stored(None, at.topic, b"k%d" % (n % 60), b"%d" % n) for n in range(ROWS)]
    for odd in [*odd_rows(at.topic, narrow, long), *bad_rows(at, narrow)]:
        rows.insert(draw.randrange(len(rows)), odd)
    insert(at, rows)
    settings: dict[str, Any] = {"producer": {"compression.type": "none"}, "producer_factory": PRODUCER}
    soon = {"grace_seconds": 1.0}
    with at.relaying(**settings, transforms=("tests.relay.transforms:picky",), limits=soon) as relaying:
        good = [row for row in rows if row.kind is None]
        relaying.until(lambda: at.pending() == 0, 90)
        assert arrived(at, narrow, long, count=len(good)) == streams(good)
        bad = [row for row in rows if row.kind is not None]
        assert {row[0]: row[1] for row in at.dead()} == {row.id: row.kind for row in bad}
        relaying.undisturbed()
        # The repaired and replayed rows arrive too.
        at.sql(
            "UPDATE outbox_dead SET kafka_topic = %s, kafka_key = 'mended', kafka_value = 'mended',"
            " kafka_header_keys = '{}', kafka_header_values = '{}', kafka_timestamp = NULL,"
            " kafka_partition = NULL",
            at.topic,
        )
        replay_all(at)
        assert arrived(at, narrow, long, count=len(rows))[at.topic, b"mended"] == [b"mended"] * len(bad)
        relaying.until(lambda: at.pending() == 0)
        assert at.dead() == []


def odd_rows(topic: str, narrow: str, long: str) -> list[Stored]:
    """Return good rows that look bad."""
    every_byte = [Stored(None, topic, bytes([n]), bytes([n])) for n in range(256)]
    return [
        *every_byte,
        *(Stored(None, narrow, b"%02d" % (n % 7), b"n%d" % n) for n in range(50)),
        Stored(None, narrow, b"xx", b"x" * NARROW_VALUE_BYTES),
        Stored(None, topic, b"kk", b"x" * (CLIENT_BYTES - 2)),
        Stored(None, topic, bytes(range(256)), bytes(range(256)) * 3),
        Stored(None, long, b"long", b"249 letters"),
        Stored(None, topic, b"", b"an empty key"),
        Stored(None, topic, b"tombstone", None),
        Stored(None, topic, b"headers", b"none of them", "{a,a}", "{x,NULL}"),
        Stored(None, topic, b"bounds", b"arrays need not begin with 1", "[7:8]={a,b}", "[0:1]={x,y}"),
        Stored(None, topic, b"placed", b"last partition", partition=2),
        Stored(None, topic, b"early", b"the first moment", timestamp="1970-01-01 00:00+00"),
    ]


def bad_rows(at: Place, narrow: str) -> list[Stored]:
    """Return rows that can never be sent. Good rows have the same keys."""
    topic, one = at.topic, "too-large"
    names = ["", ".", "..", "a b", "ü", "a/b", "a\nb", "x" * 250, "x" * 5000]
    headers = [
        ("{a,b}", "{x}"), ("{a}", "{}"), ("{}", "{x}"), ("{NULL}", "{x}"), ("{a,NULL}", "{x,y}"),
        ("{{a,b},{c,d}}", "{{x,y},{z,z}}"), ("{a}", "{{x}}"), ("{{a}}", "{x}"),
        (f"{{{','.join(['a'] * 10_001)}}}", f"{{{','.join(['NULL'] * 10_001)}}}"),
    ]  # fmt: skip
    moments = ["-infinity", "infinity", "1969-12-31 23:59:59+00", "9999-12-31+00", "4713-01-01 BC", "294276-12-31"]
    return [
        *(Stored("malformed", name, b"k1", b"bad name") for name in names),
        *(Stored("malformed", topic, b"k2", b"bad headers", *pair) for pair in headers),
        *(Stored("malformed", topic, b"k3", b"bad moment", timestamp=moment) for moment in moments),
        *(Stored("malformed", topic, b"k4", b"bad place", partition=place) for place in (-1, -5, -(2**31))),
        *(Stored("no-partition", topic, b"k5", b"no such place", partition=place) for place in (3, 99, 2**31 - 1)),
        Stored("rejected", topic, b"k6", b"too far ahead", timestamp="2500-01-01"),
        Stored("malformed", "__transaction_state", b"k7", b"the broker's own topic"),
        Stored("malformed", f"{at.settings().name}.progress", b"k8", b"the relay's own topic"),
        Stored(one, topic, b"kk", b"x" * (CLIENT_BYTES - 1)),
        Stored(one, topic, b"kk", b"x" * 17_000_000),
        Stored(one, topic, b"kk", b"", "{a}", f"{{{'x' * 1_000_000}}}"),
        Stored(one, topic, b"y" * 1_000_000, b""),
        Stored(one, narrow, b"xx", b"x" * (NARROW_VALUE_BYTES + 1)),
        Stored("transform", topic, b"k9", b"bad"),
    ]


def insert(at: Place, rows: list[Stored]) -> None:
    """Insert rows by plain SQL, without our writer, and note their ids."""
    query = b"""
      INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition,
                          kafka_timestamp)
      VALUES (%s, %s, %s, %s::text[], %s::bytea[], %s, %s::timestamptz)"""
    with psycopg.connect(at.dsn) as connection:
        connection.cursor().executemany(query, [row.columns() for row in rows])
    ids = [id_ for (id_,) in at.sql("SELECT id FROM outbox ORDER BY id")]
    for row, id_ in zip(rows, ids, strict=True):
        row.id = id_


def streams(rows: list[Stored]) -> dict[tuple[str, bytes | None], list[bytes | None]]:
    found = defaultdict(list)
    for row in rows:
        found[row.topic, row.key].append(row.value)
    return dict(found)


def arrived(at: Place, *topics: str, count: int) -> dict[tuple[str, bytes | None], list[bytes | None]]:
    found = defaultdict(list)
    for message in at.read(count, at.topic, *topics, seconds=60):
        found[str(message.topic()), message.key()].append(message.value())
    return dict(found)


def replay_all(at: Place) -> None:
    from thresher.cli.dead import replay

    replay(ds=at.dsn, every=True)


def test_a_key_of_any_length_can_be_blocked(at: Place) -> None:
    key = random.Random(SEED).randbytes(9_000)
    at.sql("INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys) VALUES (%s, %s, '{a}')", at.topic, key)
    at.stash(*(Message(topic=at.topic, key=key, value=str(n)) for n in range(3)))
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value="free") for n in range(300)))
    with at.relaying(poison=Poison.BLOCK_KEY, shards=1) as relaying:
        relaying.until(lambda: at.pending() == 3)
        assert [(row[1], row[4]) for row in at.dead()] == [("malformed", True)]
        at.read(300)
        at.sql("DELETE FROM outbox_dead")
        at.read(303)
        relaying.until(lambda: at.pending() == 0)


def test_a_restored_row_that_died_twice_is_dead_once(at: Place, stack: Stack) -> None:
    at.sql("INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys) VALUES (%s, 'k', '{a}')", at.topic)
    at.sql("CREATE TABLE backup AS SELECT id, create_time, kafka_topic, kafka_key, kafka_header_keys FROM outbox")
    with at.relaying(shards=1) as relaying:
        for _ in range(2):
            relaying.until(lambda: at.pending() == 0 and at.dead())
            replay_all(at)
        relaying.until(lambda: at.pending() == 0 and at.dead())
    at.sql("DELETE FROM outbox_dead")
    at.sql("INSERT INTO outbox (id, create_time, kafka_topic, kafka_key, kafka_header_keys) SELECT * FROM backup")
    stack.postgres.server.stop()
    stack.postgres.start()
    at.stash(Message(topic=at.topic, key="k", value="next"))
    with at.relaying(shards=1) as relaying:
        at.read(1)
        relaying.until(lambda: at.pending() == 0)
    assert [row[1] for row in at.dead()] == ["malformed"]
    assert at.sql("SELECT create_time < %s FROM outbox_dead", datetime.now(UTC)) == [(True,)]


def test_a_refused_row_makes_no_other_of_its_batch_dead(at: Place) -> None:
    narrow = f"{at.prefix}narrow"
    at.admin.create_topic(narrow, config={"max.message.bytes": str(NARROW_BYTES)})
    # The broker refuses the whole batch, and does not name the record.
    large = Message(topic=narrow, value=random.Random(SEED).randbytes(2 * NARROW_BYTES))
    good = [Message(topic=narrow, key=b"k%d" % n, value=b"good") for n in range(25)]
    at.stash(*good, large, *good)
    with at.relaying(shards=1) as relaying:
        assert len(at.read(50, narrow)) == 50
        relaying.until(lambda: at.pending() == 0)
        relaying.undisturbed()
    assert [kind for _, kind, *_ in at.dead()] == ["too-large"]


@pytest.mark.parametrize("delivery", list(Delivery))
def test_rows_that_must_wait_by_the_thousand_stop_no_others(at: Place, delivery: Delivery) -> None:
    limits = {"grace_seconds": 20.0}
    with at.relaying(shards=1, delivery=delivery, limits=limits) as relaying:
        at.stash(Message(topic=at.topic, key="first", value="x"))
        assert len(at.read(1)) == 1
        columns = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys, kafka_header_values, kafka_timestamp)"
        at.sql(f"{columns} SELECT 'absent-' || n, 'k', '{{}}', '{{}}', NULL FROM generate_series(1, 1200) n")
        at.sql(
            f"{columns} SELECT %s, convert_to('k' || n, 'UTF8'), '{{}}', '{{}}', '2100-01-01' "
            "FROM generate_series(1, 300) n",
            at.topic,
        )
        at.stash(*(Message(topic=at.topic, key=f"good{number}", value="x") for number in range(10)))
        assert len(at.read(11)) == 11
        # They arrive while the others wait, and are removed a little later.
        relaying.until(lambda: at.pending() == 1_500)
        relaying.until(lambda: any("more topics" in each for each in relaying.relay.alarms))
        assert len(relaying.relay.alarms) <= 51
        relaying.until(lambda: at.pending() == 0)
        relaying.until(lambda: not relaying.relay.alarms)
        relaying.undisturbed()
    assert at.sql("SELECT kind, count(*) FROM outbox_dead GROUP BY kind ORDER BY kind") == [
        ("no-topic", 1_200), ("rejected", 300)
    ]  # fmt: skip


def test_rows_that_many_topics_refuse_delay_others_little(at: Place) -> None:
    """Nothing tells beforehand that the rows are too large, and each refusal of the broker costs a recovery."""
    topics, draw = [f"{at.prefix}narrow{number}" for number in range(10)], random.Random(SEED)
    for topic in topics:
        at.admin.create_topic(topic, config={"max.message.bytes": str(NARROW_BYTES)})
    with at.relaying(shards=1) as relaying:
        at.stash(Message(topic=at.topic, key="first", value="x"))
        relaying.until(lambda: at.pending() == 0)
        at.stash(*(Message(topic=topic, value=draw.randbytes(2 * NARROW_BYTES)) for _ in range(30) for topic in topics))
        took = []
        for number in range(40):
            began = time.monotonic()
            at.stash(Message(topic=at.topic, key=f"good{number}", value="x"))
            relaying.until(lambda: not at.ask(f"SELECT FROM outbox WHERE kafka_topic = '{at.topic}'"))
            took.append(time.monotonic() - began)
        assert sorted(took)[len(took) * 9 // 10] < RECOVERED_SECONDS, took
        relaying.until(lambda: relaying.relay.alarms.keys() >= set(topics))
        relaying.undisturbed()
    assert {row[1] for row in at.dead()} <= {"too-large"}


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_topic_that_refuses_the_present_time_stops_no_others(at: Place, delivery: Delivery) -> None:
    strict = f"{at.prefix}strict"
    at.admin.create_topic(strict, config={"message.timestamp.before.max.ms": "0"})
    at.stash(Message(topic=strict, key="k", value="x"), *(Message(topic=at.topic, value="x") for _ in range(10)))
    with at.relaying(shards=1, delivery=delivery) as relaying:
        assert len(at.read(10)) == 10
        relaying.until(lambda: at.pending() == 1)
        relaying.until(lambda: "message.timestamp" in relaying.relay.alarms.get(strict, ""))
        relaying.undisturbed()
    assert at.dead() == []


def test_rows_without_a_key_for_a_compacted_topic_are_not_tried(at: Place, caplog: pytest.LogCaptureFixture) -> None:
    compacted = f"{at.prefix}compacted"
    at.admin.create_topic(compacted, config={"cleanup.policy": "compact"})
    with at.relaying(shards=1) as relaying:
        at.stash(*(Message(topic=compacted, key=key, value="x") for key in [*[None] * 300, "k", *[None] * 300]))
        relaying.until(lambda: at.pending() == 0)
        assert len(at.read(1, compacted)) == 1
        relaying.undisturbed()
    assert "was rejected" not in caplog.text
    assert {row[1] for row in at.dead()} == {"rejected"}
    assert len(at.dead()) == 600


def test_rows_of_a_topic_that_is_new_to_the_relay_flow_beside_missing_topics(at: Place) -> None:
    unused = f"{at.prefix}unused"
    at.admin.create_topic(unused)
    # Reads that look for rows of all topics would need half a minute for those of the missing ones.
    limits = {"grace_seconds": 600.0, "batch_rows": 200}
    with at.relaying(shards=1, limits=limits) as relaying:
        at.stash(Message(topic=at.topic, key="first", value="x"))
        relaying.until(lambda: at.pending() == 0)
        at.sql(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys, kafka_header_values) "
            "SELECT 'absent-' || n, 'k', '{}', '{}' FROM generate_series(1, 6000) n"
        )
        relaying.until(lambda: relaying.relay.alarms)
        began = time.monotonic()
        at.stash(Message(topic=unused, key="k", value="x"))
        relaying.until(lambda: not at.sql("SELECT id FROM outbox WHERE kafka_topic = %s", unused))
        assert time.monotonic() - began < FOUND_SECONDS
        relaying.undisturbed()
    assert at.dead() == [], "each missing topic has its grace"
