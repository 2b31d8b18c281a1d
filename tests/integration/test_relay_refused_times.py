"""Rows with a timestamp that the broker refuses wait for the grace, and delay no other rows."""

import pytest

from tests.relay.relaying import Place
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session

LATE, GOOD = 12, 2_000


@pytest.fixture
def at(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


@pytest.mark.parametrize("transforms", [(), ("tests.relay.transforms:picky",)], ids=["plain", "transformed"])
@pytest.mark.parametrize("delivery", list(Delivery))
def test_many_rows_with_future_timestamps_delay_no_others(
    at: Place, delivery: Delivery, transforms: tuple[str, ...]
) -> None:
    at.sql(
        "INSERT INTO outbox (kafka_topic, kafka_key, kafka_value, kafka_timestamp) SELECT %s, convert_to('late' || n, "
        "'UTF8'), 'x', now() + interval '30 days' FROM generate_series(1, %s) n",
        at.topic,
        LATE,
    )
    at.stash(*(Message(topic=at.topic, key=f"k{n % 100}", value=f"{n}") for n in range(GOOD)))
    # Long enough that a relay that keeps retrying all these rows would send no others within it.
    with at.relaying(delivery=delivery, shards=1, transforms=transforms, limits={"grace_seconds": 600.0}) as relaying:
        relaying.until(lambda: at.pending() == LATE)
        assert at.dead() == []
        assert relaying.total("recovered") <= GOOD
    assert len({message.value() for message in at.read(GOOD)}) == GOOD
