"""A reader of assigned partitions, on a real broker that restarts, with open and aborted transactions."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.processes import eventually
from tests.servers import create_topic, stack_without_postgres
from thresher.devstack import ports
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import (
    AssignedReader,
    ConsumerRecord,
    EndOfPartition,
    PartitionAdded,
    ReadEvent,
    TimestampType,
)
from thresher.kafka.partition_ends import PartitionEnds, partition_ends
from thresher.kafka.partition_watch import PositionLost, WatchTimings
from thresher.kafka.problem import BrokerLost, BrokerRefused

QUICK = WatchTimings(every_seconds=0.3, answer_seconds=30.0, missing_seconds=2.0)
SECONDS = 60.0


class Place:
    """The topic of one test, with its producers."""

    def __init__(
        self, stack: Stack, topic: str, *, partitions: int = 1, topic_config: dict[str, str] | None = None
    ) -> None:
        self.topic = topic
        self.config: dict[str, Any] = {"bootstrap.servers": stack.kafka.bootstrap}
        self.admin = Admin(stack.kafka.bootstrap)
        self.create(partitions, topic_config)

    def create(self, partitions: int = 1, topic_config: dict[str, str] | None = None) -> None:
        create_topic(self.admin, self.topic, partitions, topic_config)

    def write(self, *values: str, partition: int = 0) -> None:
        """Write records outside of transactions."""
        producer = Producer(self.config)
        for value in values:
            producer.produce(self.topic, value.encode(), partition=partition)
        assert producer.flush(SECONDS) == 0

    def begin(self, name: str, *values: str) -> Producer:
        """Open a transaction with records that have reached the broker."""
        producer = Producer({**self.config, "transactional.id": f"{self.topic}-{name}"})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        for value in values:
            producer.produce(self.topic, value.encode(), partition=0)
        assert producer.flush(SECONDS) == 0
        return producer

    def delete_before(self, offset: int) -> None:
        client = AdminClient(self.config)
        for future in client.delete_records([TopicPartition(self.topic, 0, offset)], request_timeout=60).values():
            future.result()

    def reader(self, **changes: Any) -> AssignedReader:
        return AssignedReader(self.topic, self.config, **{"timings": QUICK, **changes})


@pytest.fixture
def place(stack: Stack, topic_prefix: str) -> Place:
    return Place(stack, f"{topic_prefix}read")


def until(
    reader: AssignedReader, done: Callable[[list[ReadEvent]], bool], *, seconds: float = SECONDS
) -> list[ReadEvent]:
    """Read until `wanted` accepts the events so far, and return them."""
    seen: list[ReadEvent] = []
    deadline = time.monotonic() + seconds
    while not done(seen):
        assert time.monotonic() < deadline, seen
        seen += reader.poll(0.1)
    return seen


def ended(events: list[ReadEvent]) -> bool:
    return any(isinstance(event, EndOfPartition) for event in events)


def values(events: list[ReadEvent]) -> list[str]:
    return [(event.value or b"").decode() for event in events if isinstance(event, ConsumerRecord)]


def has(*wanted: str) -> Callable[[list[ReadEvent]], bool]:
    return lambda events: len(values(events)) >= len(wanted)


def test_records_arrive_whole_and_in_order_before_the_end(place: Place) -> None:
    producer = Producer(place.config)
    producer.produce(place.topic, b"v0", b"k0", 0, timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", None)])
    producer.produce(place.topic, None, b"", 0, timestamp=1_700_000_000_456)
    producer.produce(place.topic, b"", None, 0, timestamp=1_700_000_000_789, headers=[("b", b"")])
    assert producer.flush(SECONDS) == 0
    with place.reader() as reader:
        assert reader.partitions == (0,)
        events = until(reader, ended)
        assert events == [
            ConsumerRecord(
                place.topic,
                0,
                0,
                1_700_000_000_123,
                TimestampType.CREATE_TIME,
                b"k0",
                b"v0",
                (("a", b"1"), ("a", None)),
            ),
            ConsumerRecord(place.topic, 0, 1, 1_700_000_000_456, TimestampType.CREATE_TIME, b"", None, ()),
            ConsumerRecord(place.topic, 0, 2, 1_700_000_000_789, TimestampType.CREATE_TIME, None, b"", (("b", b""),)),
            EndOfPartition(partition=0, offset=3),
        ]
        # The end is reported again only after the new records.
        assert reader.poll(0.5) == []
        place.write("next")
        events = until(reader, ended)
        assert values(events) == ["next"]
        assert events[-1] == EndOfPartition(partition=0, offset=4)


def test_log_append_time_is_distinguished_from_create_time(stack: Stack, topic_prefix: str) -> None:
    place = Place(stack, f"{topic_prefix}times", topic_config={"message.timestamp.type": "LogAppendTime"})
    producer = Producer(place.config)
    producer.produce(place.topic, b"v", timestamp=1_000)
    assert producer.flush(SECONDS) == 0
    with place.reader() as reader:
        (record, _) = until(reader, ended)
    assert isinstance(record, ConsumerRecord)
    assert record.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert record.timestamp_ms > 1_700_000_000_000


def test_a_partition_begins_at_its_offset_or_its_first_record(stack: Stack, topic_prefix: str) -> None:
    place = Place(stack, f"{topic_prefix}starts", partitions=4)
    for partition in range(4):
        place.write("a", "b", "c", partition=partition)
    with place.reader(starts={0: 2, 2: 3}, owns=lambda partition: partition != 3) as reader:
        events = until(reader, lambda seen: sum(isinstance(each, EndOfPartition) for each in seen) == 3)
        assert reader.partitions == (0, 1, 2)
    found = [(each.partition, each.offset) for each in events if isinstance(each, ConsumerRecord)]
    assert sorted(found) == [(0, 2), (1, 0), (1, 1), (1, 2)]
    assert {each.partition for each in events if isinstance(each, EndOfPartition)} == {0, 1, 2}


def test_records_of_an_aborted_transaction_are_not_returned(place: Place) -> None:
    place.write("before")
    place.begin("aborted", "aborted1", "aborted2").abort_transaction(SECONDS)
    place.begin("committed", "committed").commit_transaction(SECONDS)
    with place.reader() as reader:
        assert values(until(reader, ended)) == ["before", "committed"]
    with place.reader(isolation="read_uncommitted") as reader:
        assert values(until(reader, ended)) == ["before", "aborted1", "aborted2", "committed"]


def test_an_open_transaction_hides_later_records(place: Place) -> None:
    place.write("before")
    opened = place.begin("open", "open")
    place.write("behind")
    with place.reader() as reader, place.reader(isolation="read_uncommitted") as hasty:
        events = until(reader, ended)
        assert values(events) == ["before"]
        # The end of a `read_committed` reader is the last stable offset.
        assert events[-1] == EndOfPartition(partition=0, offset=1)
        assert partition_ends(place.admin.client, place.topic, [0]) == {0: PartitionEnds(first=0, stable=1, high=3)}
        assert until(hasty, ended)[-1] == EndOfPartition(partition=0, offset=3)
        assert reader.poll(0.5) == []
        opened.commit_transaction(SECONDS)
        assert values(until(reader, has("open", "behind"))) == ["open", "behind"]


def test_watermarks_follow_deleted_records(place: Place) -> None:
    place.write("a", "b", "c")
    place.delete_before(2)
    assert partition_ends(place.admin.client, place.topic, [0]) == {0: PartitionEnds(first=2, stable=3, high=3)}
    with pytest.raises(BrokerLost, match="no-such-topic"):
        partition_ends(place.admin.client, "no-such-topic", [0], timeout_seconds=1.0)


def test_an_added_partition_is_read_from_its_beginning(place: Place) -> None:
    place.write("old")
    with place.reader(owns=lambda partition: partition % 2 == 0) as reader:
        until(reader, ended)
        place.admin.widen_topic(place.topic, 4)
        eventually(
            lambda: len(place.admin.facts([place.topic])) and place.admin.topics(place.topic)[0].partitions == 4, 60
        )
        # Written before the reader knows of the partition.
        for partition in (1, 2, 3):
            place.write(f"new{partition}", partition=partition)
        began = time.monotonic()
        events = until(reader, has("new2"))
        assert time.monotonic() - began < 20
        assert reader.partitions == (0, 2)
        assert [event for event in events if isinstance(event, PartitionAdded)] == [PartitionAdded(partition=2)]
        assert events.index(PartitionAdded(partition=2)) < min(
            place for place, event in enumerate(events) if isinstance(event, ConsumerRecord)
        )
        assert values(events) == ["new2"]
        # The first partition is not read again from its beginning.
        place.write("more")
        assert values(until(reader, has("more"))) == ["more"]


def test_seek_and_pause_affect_one_partition(stack: Stack, topic_prefix: str) -> None:
    place = Place(stack, f"{topic_prefix}seek", partitions=2)
    place.write("a0", "a1", "a2", partition=0)
    place.write("b0", partition=1)
    with place.reader() as reader:
        until(reader, has("a0", "a1", "a2", "b0"))
        reader.seek(0, 1)
        assert values(until(reader, has("a1", "a2"))) == ["a1", "a2"]
        reader.pause([0])
        place.write("a3", partition=0)
        place.write("b1", partition=1)
        assert values(until(reader, has("b1"))) == ["b1"]
        assert values(reader.poll(1.0)) == []
        reader.resume([0])
        assert values(until(reader, has("a3"))) == ["a3"]


def test_a_deleted_offset_is_an_error(place: Place) -> None:
    place.write("a", "b", "c")
    place.delete_before(2)
    with place.reader(starts={0: 1}) as reader, pytest.raises(PositionLost, match="not in the log"):
        until(reader, ended)
    with place.reader() as reader:
        assert values(until(reader, ended)) == ["c"]


def test_a_recreated_topic_is_an_error(place: Place) -> None:
    place.write("a")
    with place.reader() as reader:
        until(reader, ended)
        place.admin.delete_topics([place.topic])
        eventually(lambda: place.admin.topic(place.topic) is None, 60)
        place.create()
        with pytest.raises(PositionLost, match="created again"):
            until(reader, lambda _: False)


def test_a_missing_topic_is_refused_a_silent_broker_is_lost(place: Place) -> None:
    with pytest.raises(BrokerRefused, match="create the topic"):
        AssignedReader("no-such-topic", place.config, timings=QUICK).__enter__()
    silent = WatchTimings(every_seconds=0.3, answer_seconds=1.0, missing_seconds=0.5)
    nowhere = {"bootstrap.servers": f"127.0.0.1:{ports.free_port()}", "log_level": 0}
    with pytest.raises(BrokerLost, match="no broker answered"):
        AssignedReader(place.topic, nowhere, timings=silent).__enter__()


@pytest.fixture(scope="module")
def restarting() -> Iterator[Stack]:
    with stack_without_postgres() as running:
        yield running


def test_a_broker_restart_neither_repeats_nor_loses_records(restarting: Stack) -> None:
    place = Place(restarting, "restarted")
    node = restarting.kafka.nodes[1]
    expected = []
    with place.reader(timings=WatchTimings(every_seconds=0.3, answer_seconds=1.0, missing_seconds=10.0)) as reader:
        events: list[ReadEvent] = []
        for life in range(2):
            written = [f"{life}-{number}" for number in range(50)]
            expected += written
            place.write(*written)
            if life == 0:
                events += until(reader, has(*written))
            node.stop()
            # Longer than a metadata request may take.
            away = time.monotonic() + 3.0
            while time.monotonic() < away:
                events += reader.poll(0.1)
            restarting.kafka.start_node(1)
        expected.append("last")
        place.write("last")
        events += until(reader, lambda seen: "last" in values(seen))
    assert values(events) == expected
    offsets = [event.offset for event in events if isinstance(event, ConsumerRecord)]
    assert offsets == list(range(len(expected)))
