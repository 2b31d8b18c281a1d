"""A row that cannot be sent yet waits for the grace with its key, and all other rows are sent."""

from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.relay.relaying import Place
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session


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
