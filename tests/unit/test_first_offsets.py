"""A member begins at the group's offset. A first offset is committed, then noted; a missing noted one is an error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.kafka.group.offsets import GroupOffset
from thresher.kafka.partition_ends import PartitionEnds
from thresher.queue.hand_off.first_offsets import Note, beginning, notes_of
from thresher.queue.problem import OffsetsLost

QUEUE = b"orders"


def at(offset: int, partition: int = 0) -> dict[int, GroupOffset]:
    return {partition: GroupOffset(topic="t", partition=partition, offset=offset)}


def ends(**first: int) -> dict[int, PartitionEnds]:
    """Return the partitions of a topic with their first offsets, given as `p0=5`."""
    return {int(name[1:]): PartitionEnds(first=value, stable=100, high=100) for name, value in first.items()}


def test_a_member_begins_at_the_groups_offset() -> None:
    start = beginning(QUEUE, at(7), ends(p0=0), frozenset({0}))
    assert start.offsets == {0: 7}
    assert (start.to_commit, start.to_note, start.removed) == ({}, (), 0)


def test_an_offset_below_the_log_continues_at_its_first_record() -> None:
    start = beginning(QUEUE, at(7), ends(p0=20), frozenset({0}))
    assert start.offsets == {0: 20}
    assert start.to_commit == {0: 20}, "or the next member would count the removed offsets again"
    assert start.removed == 13


def test_a_new_partition_begins_at_its_first_record() -> None:
    start = beginning(QUEUE, {}, ends(p0=5), frozenset())
    assert (start.offsets, start.to_commit) == ({0: 5}, {0: 5})
    assert start.to_note == (0,)
    assert start.removed == 0


def test_a_crash_between_commit_and_note_is_repaired() -> None:
    start = beginning(QUEUE, at(7), ends(p0=0), frozenset())
    assert (start.to_commit, start.to_note) == ({}, (0,))


def test_a_missing_noted_offset_is_an_error() -> None:
    with pytest.raises(OffsetsLost, match=r"partitions 1, 2 .*--reset-offsets"):
        beginning(QUEUE, at(7), ends(p0=0, p1=0, p2=0), frozenset({0, 1, 2}))


def test_added_partitions_begin_beside_the_others() -> None:
    start = beginning(QUEUE, at(7), ends(p0=0, p1=3), frozenset({0}))
    assert (start.offsets, start.to_commit, start.to_note) == ({0: 7, 1: 3}, {1: 3}, (1,))


def test_a_note_of_another_members_partition_is_no_loss() -> None:
    assert beginning(QUEUE, at(7), ends(p0=0), frozenset({0, 5})).offsets == {0: 7}


# Notes


def note(**changes: object) -> bytes:
    content = json.loads(Note(queue=QUEUE, topic_id="id", partition=3, offset=9).encode())
    return json.dumps({**content, **changes}).encode()


def test_a_note_is_read_back() -> None:
    assert notes_of(QUEUE, "id", [note()]) == {3}


@given(st.binary(), st.integers(0, 1_000))
def test_a_note_of_any_queue_is_read_back(queue: bytes, partition: int) -> None:
    content = Note(queue=queue, topic_id="id", partition=partition, offset=0).encode()
    assert notes_of(queue, "id", [content]) == {partition}


def test_notes_of_other_queues_and_topics_say_nothing() -> None:
    assert notes_of(b"order", "id", [note()]) == frozenset()
    assert notes_of(QUEUE, "made again", [note()]) == frozenset()


def test_keys_of_different_partitions_and_queues_differ() -> None:
    keys = {
        Note(queue=queue, topic_id="id", partition=partition, offset=0).key
        for queue in (b"a", b"a/1", b"a/", b"")
        for partition in (0, 1, 11)
    }
    assert len(keys) == 12


@pytest.mark.parametrize(
    "content",
    [b"", b"null", b"[]", b'"text"', b"{}", b"\xff", note(partition=None), b"[" * 100_000]
    + [note().replace(b'"partition": 3', b'"partition": %s' % wrong) for wrong in (b"1e999", b"NaN", b'"x"')],
)
def test_records_that_are_no_notes_are_skipped(content: bytes) -> None:
    assert notes_of(QUEUE, "id", [content, note()]) == {3}


@given(st.lists(st.binary()))
def test_arbitrary_bytes_are_no_notes(contents: list[bytes]) -> None:
    assert notes_of(QUEUE, "id", contents) == frozenset()
