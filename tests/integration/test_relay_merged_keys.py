"""A transform that gives rows of many topics and keys one topic and key: they are sent in the order of their ids."""

from typing import Any

import pytest

from tests.relay.relaying import Place
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session
from thresher.testing.reading import read_topics

MERGED = "tests.relay.transforms:merged"
FAULTY = "tests.faults.faulty:faulty"


class Joint:
    """Two stored topics whose rows are sent to one topic."""

    def __init__(self, place: Place) -> None:
        self.place, self.topic = place, f"{place.prefix}joint"
        place.admin.create_topic(self.topic, partitions=3)

    def stash(self, first: int, count: int, keys: int) -> None:
        """Stash the rows key by key, so that the oldest row of one bucket is much older than another's."""
        self.place.stash(
            *(
                Message(topic=f"{self.topic}{'ab'[n % 2]}", key=f"k{n * keys // (first + count)}", value=f"{n}")
                for n in range(first, first + count)
            )
        )

    def numbers(self) -> list[int]:
        count = len(list(read_topics(self.place.stack.kafka.bootstrap, [self.topic])))
        read = self.place.read(count, self.topic)
        assert {(each.key(), each.partition()) for each in read} == {(b"one", read[0].partition())}
        return [int(each.value() or b"") for each in read]


@pytest.fixture
def joint(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Joint:
    return Joint(Place(stack, dsn, topic_prefix))


@pytest.mark.parametrize(
    ("delivery", "rows", "limits"),
    [
        (Delivery.EXACTLY_ONCE, 6_000, {"batch_rows": 500}),
        (Delivery.AT_LEAST_ONCE, 400, {"mark_rows": 50, "in_flight_rows": 20}),
    ],
)
def test_rows_with_merged_keys_arrive_in_id_order(
    joint: Joint, delivery: Delivery, rows: int, limits: dict[str, Any]
) -> None:
    joint.stash(0, rows, 40)
    place = joint.place
    with place.relaying(delivery=delivery, shards=1, transforms=(MERGED,), limits=limits) as relaying:
        relaying.until(lambda: relaying.sent() >= rows // 2)
        joint.stash(rows, 50, 40)
        relaying.until(lambda: place.pending() == 0)
    numbers = joint.numbers()
    assert sorted(set(numbers)) == list(range(rows + 50))
    assert numbers == sorted(numbers)


def test_at_least_once_repeats_of_merged_keys_are_direct(joint: Joint) -> None:
    joint.stash(0, 80, 40)
    place = joint.place
    settings: dict[str, Any] = {"shards": 1, "transforms": (MERGED,), "producer_factory": FAULTY}
    with place.relaying(delivery=Delivery.AT_LEAST_ONCE, **settings) as relaying:
        relaying.until(lambda: place.pending() == 0)
    numbers = joint.numbers()
    assert sorted(set(numbers)) == list(range(80))
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("delivery", list(Delivery))
def test_merged_rows_for_a_missing_topic_wait_in_order(joint: Joint, delivery: Delivery) -> None:
    """Rows of two stored topics go to a missing topic, among rows of the same stored keys for an existing one."""
    place, late = joint.place, f"{joint.place.prefix}late"

    def stash(first: int, count: int) -> None:
        names = (f"{late}a", f"{joint.topic}a", f"{late}b")
        place.stash(*(Message(topic=names[n % 3], key=f"k{n % 7}", value=f"{n}") for n in range(first, first + count)))

    stash(0, 300)
    with place.relaying(delivery=delivery, shards=1, transforms=(MERGED,)) as relaying:
        relaying.until(lambda: place.pending() == 200)
        stash(300, 30)
        # The other rows were sent without a restart of the shard.
        relaying.until(lambda: place.pending() == 220)
        relaying.undisturbed()
        place.admin.create_topic(late, partitions=1)
        stash(330, 30)
        relaying.until(lambda: place.pending() == 0)
        relaying.undisturbed()
    assert [n % 3 for n in joint.numbers()] == [1] * 120
    numbers = [int(each.value() or b"") for each in place.read(240, late)]
    assert numbers == [n for n in range(360) if n % 3 != 1]
