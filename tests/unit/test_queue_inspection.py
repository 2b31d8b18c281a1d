"""The figures of `peek` and `stats` from offsets and markers, and messages as JSON."""

import json

import pytest

from thresher.kafka.group.offsets import GroupOffset
from thresher.kafka.partition_ends import PartitionEnds
from thresher.queue.inspection import (
    Peeked,
    StartedMessages,
    as_json_text,
    chosen,
    described,
    lag,
    queue_of,
)
from thresher.queue.queue import group_of
from thresher.queue.wire.marker import Marker, MarkerType, MessageId
from thresher.queue.wire.record import record_of


def marker(kind: MarkerType, offset: int, queue: bytes = b"") -> Marker:
    return Marker(type=kind, message_id=MessageId(0, offset), key=queue)


def started(*markers: Marker) -> StartedMessages:
    found = StartedMessages()
    for at, each in enumerate(markers):
        found.take(each, 1_000 + at)
    return found


def peeked(at_ms: int, partition: int, offset: int) -> Peeked:
    record = record_of(MessageId(partition, offset), b"", (), at_ms)
    return Peeked(record=record, written_ms=at_ms, waiting=True)


def offset(partition: int, at: int) -> GroupOffset:
    return GroupOffset(topic="messages", partition=partition, offset=at)


START, END, KEEPALIVE = MarkerType.START, MarkerType.END, MarkerType.KEEPALIVE


def test_a_message_is_in_progress_from_start_to_end() -> None:
    found = started(
        marker(START, 1, b"a"), marker(START, 2, b"a"), marker(START, 3, b"b"), marker(KEEPALIVE, 1), marker(END, 1)
    )
    assert found.counts() == {b"a": 1, b"b": 1}
    assert (found.oldest_ms(b"a"), found.oldest_ms(b"b"), found.oldest_ms(b"c")) == (1_001, 1_002, None)


def test_messages_sharing_an_id_are_in_progress_separately() -> None:
    old, new = (
        Marker(
            type=MarkerType.START, message_id=MessageId(0, 1), key=queue, origin_id=MessageId(0, 1), enqueued_at_ms=at
        )
        for queue, at in ((b"a", 1), (b"b", 2))
    )
    end = Marker(type=MarkerType.END, message_id=MessageId(0, 1), origin_id=MessageId(0, 1), enqueued_at_ms=1)
    assert started(old, new, end).counts() == {b"b": 1}


def test_an_end_without_its_start_is_ignored() -> None:
    assert started(marker(END, 1), marker(KEEPALIVE, 2)).counts() == {}


def test_a_start_written_again_keeps_its_first_time() -> None:
    found = started(marker(START, 1, b"a"), marker(START, 2, b"a"), marker(START, 1, b"a"))
    assert (found.counts()[b"a"], found.oldest_ms(b"a")) == (2, 1_000)
    assert started(marker(START, 1, b"a"), marker(END, 1), marker(START, 1, b"a")).oldest_ms(b"a") == 1_002


@pytest.mark.parametrize("queue", [b"a", b"a b/c%d", bytes(range(256))[:200], "Grüße".encode()])
def test_a_groups_name_gives_its_queue_back(queue: bytes) -> None:
    assert queue_of(group_of(queue)) == queue


def test_other_groups_are_of_no_queue() -> None:
    assert [queue_of(group) for group in ("billing", "kafka-m", "my-kafka-mq-a")] == [None, None, None]


def test_lag_counts_the_records_ahead_of_a_group() -> None:
    ends = {each: PartitionEnds(first=10, stable=90, high=100) for each in range(5)}
    offsets = {0: offset(0, 100), 1: offset(1, 60), 2: offset(2, 5), 3: offset(3, 120)}
    # At the end; 40 before it; below the first record, after retention; past the end; without an offset.
    assert lag(ends, offsets) == 0 + 40 + 90 + 0 + 90


def test_messages_of_all_partitions_are_sorted_together() -> None:
    found = [peeked(30, 0, 1), peeked(10, 1, 7), peeked(20, 2, 3), peeked(20, 0, 0)]
    assert [each.record.message_id for each in chosen(found, 3, last=False)] == [(1, 7), (0, 0), (2, 3)]
    assert [each.record.message_id for each in chosen(found, 2, last=True)] == [(2, 3), (0, 1)]
    assert len(chosen(found, 10, last=True)) == 4


def test_json_has_every_byte_of_a_message() -> None:
    headers = (("a", b"1"), ("a", b"\xff"), ("b", None), ("thresher-delivery-count", b"3"))
    record = record_of(MessageId(1, 2), b"\x00\xfe", headers, 1_700_000_000_123)
    assert json.loads(json.dumps(described(record.message_id, record))) == {
        "id": "1-2", "origin_id": "1-2", "delivery_count": 3, "enqueued_at": "2023-11-14T22:13:20.123000+00:00",
        "headers": [{"name": "a", "value": "1"}, {"name": "a", "value_base64": "/w=="}, {"name": "b", "value": None}],
        "payload_base64": "AP4=",
    }  # fmt: skip
    assert as_json_text("payload", "Grüße".encode()) == {"payload": "Grüße"}
    assert as_json_text("payload", b"") == {"payload": ""}


@pytest.mark.parametrize("at", [b"9" * 15, b"9" * 18, b"-1", b"soon", b"\xff"])
def test_an_invalid_time_breaks_no_inspection(at: bytes) -> None:
    record = record_of(MessageId(0, 0), b"", (("thresher-enqueued-at", at),), 1_000)
    assert described(record.message_id, record)["enqueued_at"] == "1970-01-01T00:00:01+00:00"
