"""At least once, in order per key, for readers of everything: marked, sent in waves, purged, marked anew on failure."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Message as Read

from tests.relay.relaying import Place
from thresher.outbox import Message, Shape
from thresher.relay.settings import Delivery

MANY, KEYS = 600, 20


@pytest.fixture(params=[Shape.THRESHER, Shape.GOHARVEST], ids=str)
def place(request: pytest.FixtureRequest, stack: Any, spark: Any, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix, shape=request.param)


@pytest.fixture
def ours(stack: Any, spark: Any, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


def message(place: Place, number: int, key: str | None = None) -> Message:
    text = f"k{number % KEYS}" if key is None else key
    if place.shape is Shape.GOHARVEST:
        return Message(topic=place.topic, key=text, value=str(number))
    return Message(topic=place.topic, key=text.encode(), value=str(number).encode())


def by_key(read: list[Read]) -> Iterator[list[int]]:
    keys: dict[Any, list[int]] = {}
    for each in read:
        keys.setdefault(each.key(), []).append(int(each.value() or b""))
    yield from keys.values()


def test_rows_arrive_once_and_in_order_when_nothing_fails_and_no_mark_is_left(place: Place) -> None:
    place.stash(*(message(place, number) for number in range(MANY)))
    with place.relaying(delivery=Delivery.AT_LEAST_ONCE) as relaying:
        relaying.until(lambda: place.pending() == 0)
        place.stash(*(message(place, number) for number in range(MANY, MANY + 10)))
        read = place.read(MANY + 10)
        relaying.until(lambda: place.pending() == 0)
    for numbers in by_key(read):
        assert numbers == sorted(numbers)
    assert place.sql("SELECT mode FROM thresher_relay") == [("at-least-once",)]
