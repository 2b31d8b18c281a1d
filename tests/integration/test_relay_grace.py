"""A row that cannot be sent yet waits for the grace with its key, and all other rows are sent."""

import contextlib
import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.processes import descendants, eventually
from tests.relay.relay_program import relay_of
from tests.relay.relaying import Place
from thresher.db.names import TableName
from thresher.db.postgres.own_tables.wait_rows import WaitRows
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session

GRACE_SECONDS = 30.0


@pytest.fixture
def at(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


def values(at: Place, count: int, key: bytes) -> list[bytes | None]:
    return [message.value() for message in at.read(count) if message.key() == key]


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_row_and_its_key_wait_for_a_missing_partition(at: Place, delivery: Delivery) -> None:
    at.stash(Message(topic=at.topic, key="k", value="1", partition=3), Message(topic=at.topic, key="k", value="2"))
    at.stash(*(Message(topic=at.topic, key=f"other{n}", value="x") for n in range(10)))
    with at.relaying(shards=1, delivery=delivery) as relaying:
        relaying.until(lambda: at.pending() == 2)
        assert len(at.read(10)) == 10
        relaying.until(lambda: "partition 3" in relaying.relay.alarms.get(at.topic, ""))
        at.stash(Message(topic=at.topic, key="k", value="3"))
        at.admin.widen_topic(at.topic, 4)
        relaying.until(lambda: at.pending() == 0 and not relaying.relay.alarms)
        relaying.undisturbed()
    assert set(values(at, 13, b"k")) == {b"1", b"2", b"3"}
    assert at.dead() == []


def test_a_row_with_a_refused_timestamp_waits_for_its_topic(at: Place) -> None:
    ahead = datetime.now(UTC) + timedelta(days=2)
    at.stash(
        Message(topic=at.topic, key="k", value="1", timestamp=ahead),
        Message(topic=at.topic, key="k", value="2"),
        Message(topic=at.topic, key="other", value="x"),
    )
    with at.relaying(shards=1, limits={"grace_seconds": 40.0}) as relaying:
        relaying.until(lambda: at.pending() == 2 and at.topic in relaying.relay.alarms)
        assert values(at, 1, b"other") == [b"x"]
        entry = ConfigEntry(
            "message.timestamp.after.max.ms", str(2**62), incremental_operation=AlterConfigOpType.SET
        )  # fmt: skip
        resource = ConfigResource(ResourceType.TOPIC, at.topic, incremental_configs=[entry])
        client = AdminClient({"bootstrap.servers": at.stack.kafka.bootstrap})
        client.incremental_alter_configs([resource])[resource].result()
        relaying.until(lambda: at.pending() == 0 and not relaying.relay.alarms)
    assert values(at, 3, b"k") == [b"1", b"2"]
    assert at.dead() == []


def test_a_grace_goes_on_after_its_leader_was_killed(at: Place, tmp_path: Path) -> None:
    """The second leader takes over in mid-grace, and sets the rows aside when the first one would have."""
    kept = "SELECT cardinality(topics), cardinality(ids) FROM thresher_wait"
    ages = (
        "SELECT extract(epoch FROM d.dead_time - o.begun), extract(epoch FROM d.dead_time - n.begun)"
        " FROM outbox_dead d, begun o, begun_anew n"
    )
    at.stash(
        Message(topic=f"{at.prefix}missing", key="k", value="1"),
        Message(topic=at.topic, key="k", value="2", partition=3),
        Message(topic=at.topic, key="other", value="x"),
    )
    process = relay_of(at, shards=1, grace_seconds=GRACE_SECONDS).start(tmp_path / "log")
    try:
        eventually(lambda: at.sql("SELECT to_regclass('thresher_wait')")[0][0], 60, (tmp_path / "log").read_text)
        eventually(lambda: at.sql(kept) == [(1, 1)], 60, (tmp_path / "log").read_text)
        at.sql("CREATE TABLE begun AS SELECT clock_timestamp() AS begun")
        time.sleep(GRACE_SECONDS / 2)
    finally:
        below = descendants(process.pid)
        for pid in (process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(60)
    at.sql("CREATE TABLE begun_anew AS SELECT clock_timestamp() AS begun")
    with at.relaying(shards=1, limits={"grace_seconds": GRACE_SECONDS}) as relaying:
        relaying.until(lambda: set(relaying.relay.alarms) == {f"{at.prefix}missing", at.topic})
        relaying.until(lambda: at.pending() == 0)
        relaying.undisturbed()
    assert {row[1] for row in at.dead()} == {"no-topic", "no-partition"}
    # A grace that began anew would be over a whole one after the second leader's start, not half of one.
    assert all(age > 0.8 * GRACE_SECONDS and anew < 0.95 * GRACE_SECONDS for age, anew in at.sql(ages))


def test_a_wait_that_nobody_has_written_for_long_does_not_count(at: Place) -> None:
    """Such as the row of a shard that is no more: the topic may have been fine since."""
    with psycopg.connect(at.dsn, autocommit=True) as connection:
        waits = WaitRows(connection, "public", TableName(table="thresher_control", schema="public"))
        waits.create()
        for shard, (topic, ago) in enumerate({"fine": 90, "waits": 10}.items()):
            connection.execute(
                "INSERT INTO thresher_wait VALUES ('it', %s, %s, '{5}', '{}', '{}', '{}', clock_timestamp() - %s)",
                [shard, [topic], timedelta(seconds=ago)],
            )
        assert {topic: round(seconds) for topic, seconds in waits.read("it").topics.items()} == {"waits": 15}
