"""A relay with good and bad rows, on real servers and a real Spark."""

import copy
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from tests.faults.patient import PRODUCER
from tests.relay.relaying import Place, Relaying, taken_over
from thresher.core.errors import InvalidInput, Superseded
from thresher.db.problem import DatabaseRefused
from thresher.delivery.problem import ForeignProgress, Halted, TransformUnusable
from thresher.delivery.progress_topic.own_topic import own_topic
from thresher.delivery.rules import Poison
from thresher.devstack.stack import Stack
from thresher.kafka.problem import BrokerRefused
from thresher.outbox import Message, Shape
from thresher.relay.leader import take_over as takeover
from thresher.relay.settings import Delivery, Settling
from thresher.spark.session.session import Session

Places = Callable[..., Place]


@pytest.fixture
def place(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Places:
    def make(**options: Any) -> Place:
        return Place(stack, dsn, topic_prefix, **options)

    return make


def values(messages: Any) -> list[bytes]:
    return [message.value() for message in messages]


def headers_of(message: Any) -> list[Any]:
    return list(message.headers())


def in_order(messages: Any) -> None:
    """Check that the numbers in the values rise within each key."""
    for key in {message.key() for message in messages}:
        numbers = [int(message.value()) for message in messages if message.key() == key]
        assert numbers == sorted(numbers)


def test_every_part_of_a_message_arrives_as_it_was_stored(place: Places) -> None:
    at = place()
    moment = datetime(2024, 2, 29, 12, 30, 15, 123000, tzinfo=UTC)
    headers = [("a", b"1"), ("b", None), ("a", b"\x00\xff"), ("ü", b"")]
    every_byte = bytes(range(256))
    at.sql("ALTER TABLE outbox ADD COLUMN remark TEXT DEFAULT 'mine', ADD COLUMN at DATE")
    at.stash(
        Message(topic=at.topic, key="text", value="grün", headers=headers),
        Message(topic=at.topic, key=every_byte, value=every_byte, partition=2, timestamp=moment),
        Message(topic=at.topic, key="tombstone", value=None),
        Message(topic=at.topic, key=None, value=b"no key"),
        Message(topic=at.topic, key=b"", value=b""),
    )
    with at.relaying(shards=1) as relaying:
        found = {message.key() or message.value(): message for message in at.read(5)}
        relaying.until(lambda: at.pending() == 0)
    assert found[b"text"].value() == "grün".encode()
    assert headers_of(found[b"text"]) == headers
    assert found[every_byte].value() == every_byte
    assert found[every_byte].partition() == 2
    assert found[every_byte].timestamp() == (TIMESTAMP_CREATE_TIME, int(moment.timestamp() * 1000))
    assert found[b"tombstone"].value() is None
    assert found[b"no key"].key() is None
    assert found[b""].key() == b""
    assert at.dead() == []
    assert at.sql("SELECT count(*) FROM outbox") == [(0,)]


def test_goharvests_table_is_relayed_too(place: Places) -> None:
    at = place(shape=Shape.GOHARVEST)
    at.stash(*(Message(topic=at.topic, key=f"k{n % 7}", value=f"v{n}", headers=[("n", str(n))]) for n in range(500)))
    at.stash(Message(topic=at.topic, key="k0", value=None))
    with at.relaying(shards=2) as relaying:
        found = at.read(501)
        relaying.until(lambda: at.pending() == 0)
    for key in {message.key() for message in found}:
        mine = [message for message in found if message.key() == key and message.value() is not None]
        numbers = [int(headers_of(message)[0][1]) for message in mine]
        assert numbers == sorted(numbers)
        assert [message.value() for message in mine] == [f"v{n}".encode() for n in numbers]
    assert [message.key() for message in found if message.value() is None] == [b"k0"]


def test_late_commits_are_sent_and_rolled_back_rows_are_not(place: Places) -> None:
    at = place()
    with psycopg.connect(at.dsn) as late, psycopg.connect(at.dsn) as gone, at.relaying(shards=1) as relaying:
        at.outbox.stash(late, Message(topic=at.topic, key="late", value="low id"))
        at.outbox.stash(gone, Message(topic=at.topic, key="gone", value="never"))
        at.stash(*(Message(topic=at.topic, key=f"k{n}", value="high id") for n in range(50)))
        at.read(50)
        gone.rollback()
        late.commit()
        assert sorted(values(at.read(51)))[-1] == b"low id"
        relaying.until(lambda: at.pending() == 0)


def test_rows_keep_their_order_per_key_under_load(place: Places) -> None:
    at = place()
    count = 1500

    def write() -> None:
        with psycopg.connect(at.dsn) as connection:
            for number in range(count):
                at.outbox.stash(connection, Message(topic=at.topic, key=f"k{number % 5}", value=str(number)))
                if number % 7 == 0:
                    connection.commit()

    with at.relaying(limits={"batch_rows": 100}) as relaying:
        relaying.until(lambda: relaying.up)
        writer = threading.Thread(target=write)
        writer.start()
        found = at.read(count, seconds=90)
        writer.join()
    in_order(found)


def test_settling_by_stamp_keeps_the_rows_and_sends_them_once(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(20)))
    with at.relaying(settling=Settling.STAMP, shards=1) as relaying:
        at.read(20)
        relaying.until(lambda: at.pending() == 0)
    with at.relaying(settling=Settling.STAMP, shards=1) as relaying:
        at.stash(Message(topic=at.topic, key="k", value="20"))
        assert [int(value) for value in values(at.read(21))] == list(range(21))
        relaying.until(lambda: at.pending() == 0)
    assert at.sql("SELECT count(*), count(dispatched_time) FROM outbox") == [(21, 21)]


def test_transforms_filter_and_change_one_after_another(place: Places) -> None:
    at = place()
    at.admin.create_topic(f"{at.topic}-elsewhere")
    at.stash(*(Message(topic=at.topic, key="k", value=f"v{n}", headers=[("n", str(n))]) for n in range(10)))
    names = ("only_even", "shout", "elsewhere")
    transforms = tuple(f"tests.relay.transforms:{name}" for name in names)
    with at.relaying(transforms=transforms, shards=1, producer_factory=PRODUCER) as relaying:
        found = at.read(5, f"{at.topic}-elsewhere")
        relaying.until(lambda: at.pending() == 0)
        relaying.until(lambda: (relaying.total("relayed"), relaying.total("filtered")) == (5, 5))
    assert values(found) == [f"V{n}!".encode() for n in (0, 2, 4, 6, 8)]
    assert [message.key() for message in found] == values(found)
    assert found[0].headers() == [("n", b"0"), ("shouted", b"yes")]
    at.read(0)
    assert at.dead() == []


def test_a_row_that_fails_in_a_transform_is_dead_alone(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value="bad" if n in {7, 400} else str(n)) for n in range(500)))
    with at.relaying(transforms=("tests.relay.transforms:picky",), shards=1) as relaying:
        found = values(at.read(498))
        relaying.until(lambda: at.pending() == 0)
    assert [int(value) for value in found] == [n for n in range(500) if n not in {7, 400}]
    assert [(row[1], row[4]) for row in at.dead()] == [("transform", False)] * 2
    for row in at.dead():
        assert f"tests.relay.transforms:picky failed on row {row[0]}: ValueError: this one I do not like" in row[2]


def test_a_transform_that_always_fails_makes_no_dead_rows(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value="x") for n in range(300)))
    with at.relaying(transforms=("tests.relay.transforms:broken",), shards=1) as relaying:
        relaying.until(lambda: "set aside until" in relaying.relay.alarms.get(at.topic, ""))
        relaying.until(lambda: not relaying.up)
        assert at.pending() == 300
        assert at.dead() == []
    with at.relaying(shards=1) as relaying:
        at.read(300)


def test_a_transform_without_any_success_makes_no_dead_rows(place: Places, tmp_path: Path) -> None:
    at = place()
    out_of_order = tmp_path / "out-of-order"
    out_of_order.touch()
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(out_of_order)) for n in range(17)))
    with at.relaying(transforms=("tests.relay.transforms:out_of_order",), shards=1) as relaying:
        relaying.until(lambda: "all 17 rows of its first batch" in relaying.relay.alarms.get(at.topic, ""))
        relaying.until(lambda: not relaying.up)
        assert at.dead() == []
        # The transform works again, and the relay goes on by itself.
        out_of_order.unlink()
        relaying.until(lambda: at.pending() == 0 and relaying.up and not relaying.relay.alarms)
        relaying.undisturbed()
        assert at.dead() == []
        # After a first success, a row that fails in the transform is dead.
        at.stash(Message(topic=at.topic, key="k", value=str(tmp_path)))
        relaying.until(lambda: [row[1] for row in at.dead()] == ["transform"])
    at.read(17)


def test_a_transform_that_cannot_be_imported_ends_the_relay(place: Places) -> None:
    at = place()
    with at.relaying(transforms=("tests.relay.transforms:nowhere",), shards=1) as relaying:
        error = relaying.ended()
    assert isinstance(error, TransformUnusable)
    assert "nowhere" in str(error)


def test_a_record_too_large_is_dead_alone_among_many(place: Places) -> None:
    at = place()
    narrow = f"{at.prefix}narrow"
    at.admin.create_topic(narrow, partitions=2, config={"max.message.bytes": "20000"})
    rows = [
        Message(topic=narrow, key=f"k{n % 50}", value=b"x" * 30_000 if n == 3_000 else str(n)) for n in range(5_000)
    ]
    at.stash(*rows)
    with at.relaying(shards=1, producer={"compression.type": "none"}, producer_factory=PRODUCER) as relaying:
        found = at.read(4_999, narrow, seconds=90)
        relaying.until(lambda: at.pending() == 0)
        relaying.undisturbed()
    in_order(found)
    ((_, kind, reason, attempts, blocking),) = at.dead()
    assert (kind, blocking) == ("too-large", False)
    assert "too large" in reason.lower()
    assert attempts > 1


def test_unsendable_rows_are_dead_with_their_reason(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="before"))
    insert = "INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys, kafka_header_values"
    at.sql(f"{insert}) VALUES (%s, 'k', '{{a,b}}', '{{x}}')", at.topic)
    at.sql(f"{insert}) VALUES (%s, 'k', '{{NULL}}', '{{x}}')", at.topic)
    at.sql(f"{insert}) VALUES ('not a topic', 'k', '{{}}', '{{}}')")
    at.sql(f"{insert}, kafka_partition) VALUES (%s, 'k', '{{}}', '{{}}', 99)", at.topic)
    at.sql(f"{insert}, kafka_partition) VALUES (%s, 'k', '{{}}', '{{}}', -5)", at.topic)
    at.sql(f"{insert}, kafka_timestamp) VALUES (%s, 'k', '{{}}', '{{}}', '1950-01-01')", at.topic)
    at.sql(f"{insert}, kafka_timestamp) VALUES (%s, 'k', '{{}}', '{{}}', 'infinity')", at.topic)
    at.sql(f"{insert}) VALUES (%s, 'k', '{{{{a,b}},{{c,d}}}}', '{{{{x,y}},{{z,z}}}}')", at.topic)
    at.sql("INSERT INTO outbox (kafka_topic, kafka_value) VALUES (%s, repeat('x', 17000000)::bytea)", at.topic)
    at.stash(Message(topic=at.topic, key="k", value="after"))
    # A row with an odd creation time is sent.
    at.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, create_time) VALUES (%s, 'k', 'x', 'infinity')",
        at.topic,
    )
    at.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, create_time) VALUES (%s, 'k', 'y', '0044-03-15 BC')",
        at.topic,
    )
    with at.relaying(shards=1, limits={"grace_seconds": 1.0}) as relaying:
        assert values(at.read(4)) == [b"before", b"after", b"x", b"y"]
        relaying.until(lambda: at.pending() == 0)
    found = [(kind, reason) for _, kind, reason, _, _ in at.dead()]
    kinds = ["malformed"] * 3 + ["no-partition"] + ["malformed"] * 4 + ["too-large"]
    assert [kind for kind, _ in found] == kinds
    assert at.sql("SELECT octet_length(kafka_value) FROM outbox_dead ORDER BY id DESC LIMIT 1") == [(17_000_000,)]
    assert ["unequal" in found[0][1], "no name" in found[1][1], "not a topic" in found[2][1]] == [True] * 3
    assert "the topic has 3 partitions" in found[3][1]


def test_a_blocked_key_waits_and_other_keys_are_sent(place: Places) -> None:
    at = place()
    at.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_header_keys) VALUES (%s, 'blocked', '{a}')", at.topic
    )  # A header without a value.
    at.stash(*(Message(topic=at.topic, key="blocked", value=str(n)) for n in range(500)))
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value="free") for n in range(200)))
    settings: dict[str, Any] = {"shards": 1, "poison": Poison.BLOCK_KEY, "limits": {"batch_rows": 50}}
    with at.relaying(**settings) as relaying:
        assert set(values(at.read(200))) == {b"free"}
        relaying.until(lambda: at.pending() == 500)
    with at.relaying(**settings) as relaying:  # Also after a restart.
        at.stash(Message(topic=at.topic, key="more", value="free"))
        assert set(values(at.read(201))) == {b"free"}
        ((id_, kind, _, _, blocking),) = at.dead()
        assert (kind, blocking) == ("malformed", True)
        # The repaired and replayed row precedes the rows that waited for it.
        at.sql("UPDATE outbox_dead SET kafka_header_values = '{x}', kafka_value = 'mended'")
        at.sql(
            "WITH gone AS (DELETE FROM outbox_dead WHERE id = %s RETURNING *) INSERT INTO outbox (id, kafka_topic,"
            " kafka_key, kafka_value, kafka_header_keys, kafka_header_values) SELECT id, kafka_topic, kafka_key,"
            " kafka_value, kafka_header_keys, kafka_header_values FROM gone",
            id_,
        )
        found = [message for message in at.read(702) if message.key() == b"blocked"]
        assert values(found) == [b"mended", *(str(n).encode() for n in range(500))]
        relaying.until(lambda: at.pending() == 0)


def test_the_policy_halt_ends_the_relay_and_keeps_the_row(place: Places) -> None:
    at = place()
    at.sql("INSERT INTO outbox (kafka_topic, kafka_key) VALUES ('not a topic', 'k')")
    with at.relaying(poison=Poison.HALT, shards=1) as relaying:
        error = relaying.ended()
    assert isinstance(error, Halted)
    assert error.exit_code == 4
    assert "row 1" in str(error)
    assert at.pending() == 1
    assert at.dead() == []


def test_rows_of_a_missing_topic_wait_while_others_are_sent(place: Places) -> None:
    at = place()
    missing = f"{at.prefix}missing"
    at.stash(*(Message(topic=missing, key=f"k{n}", value=str(n)) for n in range(200)))
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(200)))
    with at.relaying(shards=1, limits={"batch_rows": 50}) as relaying:
        at.read(200)
        # A row that was sent may not be settled yet.
        relaying.until(lambda: missing in relaying.relay.alarms and at.pending() == 200)
        at.admin.create_topic(missing)
        at.read(200, missing)
        relaying.until(lambda: at.pending() == 0)
        relaying.until(lambda: not relaying.relay.alarms)
    assert at.dead() == []


def test_rows_of_a_missing_topic_are_dead_after_the_grace(place: Places) -> None:
    at = place()
    missing = f"{at.prefix}missing"
    with at.relaying(limits={"grace_seconds": 3.0}, shards=1) as relaying:
        relaying.until(lambda: relaying.up)
        at.stash(*(Message(topic=missing, key=f"k{n}", value=str(n)) for n in range(20)))
        relaying.until(lambda: missing in relaying.relay.alarms)
        relaying.until(lambda: len(at.dead()) == 20)
        # By the database's clock the grace was over: the test may look later.
        assert at.sql("SELECT min(dead_time - create_time) > '2.9 s' FROM outbox_dead") == [(True,)]
        at.stash(Message(topic=at.topic, key="k", value="on"))
        at.read(1)
    assert {row[1] for row in at.dead()} == {"no-topic"}
    assert at.pending() == 0


def test_a_change_of_shards_repeats_and_reorders_nothing(place: Places) -> None:
    at = place()
    sent = 0
    for shards in (1, 3):
        with at.relaying(shards=shards) as relaying:
            at.stash(*(Message(topic=at.topic, key=f"k{n % 9}", value=str(n)) for n in range(sent, sent + 300)))
            sent += 300
            relaying.until(lambda: relaying.sent() > 0)
    with at.relaying(shards=2):
        found = at.read(sent)
    in_order(found)


def test_a_newer_relay_supersedes_the_older_one(place: Places) -> None:
    at = place()
    with at.relaying(shards=1) as older:
        older.until(lambda: older.up)
        with at.relaying(shards=1) as newer:
            error = older.ended()
            at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(100)))
            at.read(100)
            newer.until(lambda: at.pending() == 0)
            assert newer.error is None
    assert isinstance(error, Superseded)
    assert error.exit_code == 3


def test_another_databases_progress_is_refused_before_anything_is_fenced(place: Places, stack: Stack) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="1"))
    other = stack.postgres.create_database("other_progress")
    try:
        with at.relaying(shards=1) as relaying:
            at.read(1)
            theirs = Place.__new__(Place)
            theirs.__dict__.update(at.__dict__, dsn=other)
            from thresher.outbox import create_schema

            with psycopg.connect(other) as connection:
                create_schema(connection, at.table)
            with theirs.relaying(shards=1) as foreign:
                error = foreign.ended()
            assert isinstance(error, ForeignProgress)
            assert "this outbox's relay did not write" in str(error)
            at.stash(Message(topic=at.topic, key="k", value="2"))
            at.read(2)
            assert relaying.total("fences.broker") == 0
    finally:
        stack.postgres.drop_database("other_progress")


def test_another_table_under_the_same_name_is_refused(place: Places) -> None:
    at = place()
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: relaying.up)
    again = Place(at.stack, at.dsn, f"{at.prefix}b-", table="second")
    with again.relaying(name=at.settings().name, shards=1) as relaying:
        error = relaying.ended()
    assert isinstance(error, ForeignProgress)
    assert '"outbox"' in str(error)


def test_another_name_for_the_same_outbox_is_refused_until_adopted(place: Places) -> None:
    at = place()
    name = at.settings().name
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: relaying.up)
        with at.relaying(name=f"{name}-2", shards=1) as second:
            error = second.ended()
        at.stash(Message(topic=at.topic, key="k", value="1"))
        at.read(1)
    assert isinstance(error, ForeignProgress)
    assert f"'{name}'" in str(error)
    assert f"thresher adopt {name}-2 --instead-of {name}" in str(error)
    with pytest.raises(InvalidInput, match="there is no relay"):
        adopt(at, f"{name}-2")
    adopt(at, f"{name}-2", instead_of=name)
    at.stash(Message(topic=at.topic, key="k", value="2"))
    with at.relaying(name=f"{name}-2", shards=1) as relaying:
        at.read(2)
        relaying.until(lambda: at.pending() == 0)
    assert at.sql("SELECT name FROM thresher_relay") == [(f"{name}-2",)]
    # Back to the first name, which has a progress topic.
    with pytest.raises(InvalidInput, match="was not relayed under another name"):
        adopt(at, name, instead_of=name)
    adopt(at, name, instead_of=f"{name}-2")
    at.stash(Message(topic=at.topic, key="k", value="3"))
    with at.relaying(shards=1) as relaying:
        at.read(3)
        relaying.until(lambda: at.pending() == 0)


def test_a_progress_topic_with_finite_retention_is_refused(place: Places) -> None:
    at = place()
    at.admin.create_topic(f"{at.settings().name}.progress", config={"retention.ms": "3600000"})
    with at.relaying(shards=1) as relaying:
        error = relaying.ended()
    assert isinstance(error, BrokerRefused)
    assert "retention.ms=3600000" in str(error)


def test_a_copied_database_or_replaced_progress_topic_needs_adopt(place: Places) -> None:
    at = place()
    name = at.settings().name
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: relaying.up)
    at.sql("UPDATE thresher_relay SET system_id = '1'")
    with at.relaying(shards=1) as relaying:
        error = relaying.ended()
    assert isinstance(error, ForeignProgress)
    assert f"thresher adopt {name}" in str(error)
    adopt(at, name)
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: relaying.up)
    at.admin.delete_topics([f"{name}.progress"])
    with at.relaying(shards=1) as relaying:
        error = relaying.ended()
    assert isinstance(error, ForeignProgress)
    adopt(at, name)
    at.stash(Message(topic=at.topic, key="k", value="1"))
    with at.relaying(shards=1) as relaying:
        at.read(1)


def adopt(at: Place, name: str, **options: str) -> None:
    from thresher.cli.adopt import adopt as command

    command(name, ds=at.dsn, **options)


@pytest.mark.parametrize("what", ["password", "table", "permission"])
def test_an_error_that_needs_a_person_ends_the_relay(place: Places, what: str) -> None:
    at = place()
    changes: dict[str, Any] = {}
    if what == "password":
        at.sql("DROP ROLE IF EXISTS relay_user")
        at.sql("CREATE ROLE relay_user LOGIN PASSWORD 'right'")
        changes["dsn"] = psycopg.conninfo.make_conninfo(at.dsn, user="relay_user", password="wrong")
    elif what == "table":
        at.sql("DROP TABLE outbox")
    else:
        at.sql("DROP ROLE IF EXISTS relay_user")
        at.sql("CREATE ROLE relay_user LOGIN PASSWORD 'right'")
        changes["dsn"] = psycopg.conninfo.make_conninfo(at.dsn, user="relay_user", password="right")
    with at.relaying(**changes, shards=1) as relaying:
        error = relaying.ended()
    assert isinstance(error, DatabaseRefused)
    assert error.exit_code == 4
    expected = {"password": "password authentication failed", "table": "no table", "permission": "permission denied"}
    assert expected[what] in str(error)
    assert "wrong" not in str(error)


def test_large_rows_are_bounded_by_bytes(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value=b"x" * 200_000) for n in range(60)))
    settings: dict[str, Any] = {"limits": {"batch_bytes": 1_000_000}, "producer": {"compression.type": "none"}}
    with at.relaying(**settings, shards=1, producer_factory=PRODUCER) as relaying:
        at.read(60)
        relaying.until(lambda: at.pending() == 0)
        relaying.until(lambda: relaying.total("relayed") == 60)
        assert relaying.total("transactions") >= 12


def test_only_python_workers_publish_rows_never_the_driver(place: Places) -> None:
    import os

    at = place()
    with at.relaying(shards=2) as relaying:
        at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(100)))
        at.read(100)
        relaying.until(lambda: relaying.sent() == 100)
        pids = {relaying.pid(shard) for shard in range(2)}
        counted = [sum(shard.counts.get(name, 0) for name in ("relayed", "recovered")) for shard in relaying.shards]
        assert all(counted)
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_a_relay_takes_over_once_its_database_is_reachable(place: Places) -> None:
    at = place()
    name = at.sql("SELECT current_database()")[0][0]
    admin = psycopg.conninfo.make_conninfo(at.dsn, dbname="postgres")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'.encode())
        relaying = Relaying(at.settings(shards=1))
        with relaying:
            time.sleep(1.0)
            assert relaying.error is None
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'.encode())
            at.stash(Message(topic=at.topic, key="k", value="1"))
            at.read(1)


def keep_rows(at: Place) -> None:
    at.sql("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    at.sql("CREATE TRIGGER keep BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION keep()")


def ended_by_kept_rows(relaying: Relaying) -> None:
    with relaying:
        error = relaying.ended()
    assert isinstance(error, DatabaseRefused)
    assert "could not be removed" in str(error)


@pytest.mark.parametrize(("partition", "sent"), [(None, 1), (99, 0)], ids=["sent", "dead"])
def test_rows_that_cannot_be_deleted_end_the_relay(place: Places, partition: int | None, sent: int) -> None:
    at = place()
    keep_rows(at)
    at.stash(Message(topic=at.topic, key="k", value="1", partition=partition))
    ended_by_kept_rows(at.relaying(shards=1, producer_factory=PRODUCER, limits={"grace_seconds": 1.0}))
    assert len(at.read(sent)) == sent


@pytest.mark.parametrize("delivery", Delivery)
def test_rows_that_cannot_be_deleted_are_not_sent_again(place: Places, delivery: Delivery) -> None:
    at = place()
    keep_rows(at)
    at.stash(Message(topic=at.topic, key="k", value="1"))
    # The last relay has another layout: the driver settles the rows that its predecessor published.
    for shards in (1, 1, 2):
        ended_by_kept_rows(at.relaying(shards=shards, delivery=delivery, producer_factory=PRODUCER))
    at.read(1)
    at.sql("DROP TRIGGER keep ON outbox")
    at.stash(Message(topic=at.topic, key="k", value="2"))
    with at.relaying(shards=1, delivery=delivery) as relaying:
        relaying.until(lambda: at.pending() == 0)
    assert values(at.read(2)) == [b"1", b"2"]


def test_the_empty_key_is_a_key_with_one_partition(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key=b"", value=str(n)) for n in range(50)))
    with at.relaying(shards=1):
        found = at.read(50)
    assert len({message.partition() for message in found}) == 1
    in_order(found)


def test_a_larger_layout_that_never_ran_is_replaced(place: Places) -> None:
    at = place()
    with at.relaying() as relaying:
        relaying.until(lambda: relaying.up)
    at.sql("UPDATE thresher_relay SET shards = 5")
    at.stash(Message(topic=at.topic, key="k", value="1"))
    with at.relaying() as relaying:
        at.read(1)
    assert at.sql("SELECT shards FROM thresher_relay") == [(2,)]


def test_a_take_over_settles_the_layout_found_with_its_term(place: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    at = place()
    with at.relaying(shards=2) as relaying:
        relaying.until(lambda: relaying.up)
    fenced: list[int] = []
    real = takeover._settle_layout

    def settle(*given: Any) -> None:
        fenced.append(given[2].shards)
        real(*given)

    monkeypatch.setattr(takeover, "_settle_layout", settle)

    def meanwhile(*given: Any, **more: Any) -> Any:
        # Another leader changes the layout after our first look and before our term.
        monkeypatch.setattr(takeover, "own_topic", own_topic)
        at.sql("UPDATE thresher_relay SET shards = 4")
        return own_topic(*given, **more)

    monkeypatch.setattr(takeover, "own_topic", meanwhile)
    taken_over(at.settings(shards=2))
    # Several times, if the take-over was retried.
    assert set(fenced) == {4}


def test_rows_of_a_restored_database_are_not_sent_again(place: Places, stack: Stack) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(60)))
    at.sql("CREATE TABLE backup AS SELECT id, create_time, kafka_topic, kafka_key, kafka_value FROM outbox")
    with at.relaying(shards=2, limits={"batch_rows": 5}) as relaying:
        at.read(60)
        relaying.until(lambda: at.pending() == 0)
    at.sql("INSERT INTO outbox (id, create_time, kafka_topic, kafka_key, kafka_value) SELECT * FROM backup")
    stack.postgres.server.stop()
    stack.postgres.start()
    at.stash(Message(topic=at.topic, key="k1", value="60"))
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: at.pending() == 0)
        found = at.read(61)
    in_order(found)


def test_rows_of_a_restored_table_are_not_sent_again(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(60)))
    columns = "id, create_time, kafka_topic, kafka_key, kafka_value"
    at.sql(f"CREATE TABLE backup AS SELECT {columns} FROM outbox")
    with at.relaying(shards=2, limits={"batch_rows": 5}) as relaying:
        at.read(60)
        relaying.until(lambda: at.pending() == 0)
    # As a restore of the table, while the server runs.
    at.sql("ALTER TABLE outbox RENAME TO lost")
    at.sql("CREATE TABLE outbox (LIKE lost INCLUDING ALL)")
    at.sql(f"INSERT INTO outbox ({columns}) SELECT * FROM backup")
    at.sql("SELECT setval(pg_get_serial_sequence('outbox', 'id'), 60)")
    at.stash(Message(topic=at.topic, key="k1", value="60"))
    with at.relaying(shards=2) as relaying:
        relaying.until(lambda: at.pending() == 0)
        found = at.read(61)
    in_order(found)


def test_an_adopted_copy_of_the_database_sends_nothing_again(
    place: Places,
) -> None:
    at = place()
    with at.relaying(shards=2) as relaying:
        relaying.until(lambda: relaying.up)
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(60)))
    copied = copy_of(at)
    with at.relaying(shards=2, limits={"batch_rows": 5}) as relaying:
        at.read(60)
        relaying.until(lambda: at.pending() == 0)
    with copied.relaying(shards=2) as other:
        error = other.ended()
    assert isinstance(error, ForeignProgress)
    name = at.settings().name
    assert f"thresher adopt {name}" in str(error)
    adopt(copied, name)
    copied.stash(Message(topic=at.topic, key="k1", value="60"))
    with copied.relaying(shards=2) as other:
        other.until(lambda: copied.pending() == 0)
        in_order(copied.read(61))


def copy_of(at: Place) -> Place:
    """Return the place with a copy of its database."""
    ((name,),) = at.sql("SELECT current_database()")
    copied = f"{name}_copy"
    with psycopg.connect(at.stack.postgres.dsn(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{copied}" TEMPLATE "{name}"'.encode())
    other = copy.copy(at)
    other.dsn = psycopg.conninfo.make_conninfo(at.dsn, dbname=copied)
    return other


@pytest.mark.parametrize("settling", list(Settling))
def test_settling_stays_fast_with_statistics_of_an_empty_table(place: Places, settling: Settling) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(5)))
    with at.relaying(settling=settling, shards=1) as relaying:
        at.read(5)
        relaying.until(lambda: at.pending() == 0)
    at.sql("DELETE FROM outbox")
    at.sql("VACUUM ANALYZE outbox")
    with at.relaying(settling=settling, shards=1) as relaying:
        relaying.until(lambda: relaying.relay.term)
        at.sql(
            "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value)"
            " SELECT %s, convert_to('k' || n, 'UTF8'), 'v' FROM generate_series(1, 20000) n",
            at.topic,
        )
        # Measured: 1 s. With a join that is planned for an empty table it takes minutes.
        relaying.until(lambda: at.pending() == 0, 60)


def test_a_new_row_under_an_old_id_is_not_settled(place: Places) -> None:
    at = place()
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(5)))
    with at.relaying(shards=1) as relaying:
        at.read(5)
        relaying.until(lambda: at.pending() == 0)
    at.sql("TRUNCATE outbox RESTART IDENTITY")
    at.stash(*(Message(topic=at.topic, key="k", value=str(n)) for n in range(5, 10)))
    assert at.sql("SELECT min(id), max(id) FROM outbox") == [(1, 5)]
    with at.relaying(shards=1):
        assert values(at.read(10)) == [str(n).encode() for n in range(10)]


def test_idle_session_timeout_does_not_end_an_idle_relays_sessions(place: Places) -> None:
    at = place()
    name = at.sql("SELECT current_database()")[0][0]
    at.sql(f"ALTER DATABASE \"{name}\" SET idle_session_timeout = '1s'")
    with at.relaying(shards=1) as relaying:
        for number in range(2):
            at.stash(Message(topic=at.topic, key="k", value=str(number)))
            at.read(number + 1)
            # Longer than `idle_session_timeout`.
            time.sleep(1.5)
        assert at.pending() == 0
        relaying.undisturbed()


def test_a_failed_settling_is_repaired_without_another_row(place: Places) -> None:
    at = place()
    at.stash(Message(topic=at.topic, key="k", value="0"))
    # Among the shard's sessions only the one that settles commits.
    settles = (
        "FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'thresher/%'"
        " AND state = 'idle' AND query = 'COMMIT'"
    )
    with at.relaying(shards=1) as relaying:
        relaying.until(lambda: at.pending() == 0 and at.sql(f"SELECT pid {settles}"))
        assert len(at.sql(f"SELECT pg_terminate_backend(pid) {settles}")) == 1
        at.stash(Message(topic=at.topic, key="k", value="1"))
        relaying.until(lambda: at.pending() == 0)
        assert all(shard.restarts for shard in relaying.shards)
    assert values(at.read(2)) == [b"0", b"1"]
