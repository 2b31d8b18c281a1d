"""Polled records are cut into batches, and offsets never pass a record of our queue that is in no batch."""

from thresher.queue.hand_off.polled_records import Batch, PolledRecords, Span
from thresher.queue.wire.marker import MessageId
from thresher.queue.wire.record import Record


def record(partition: int, offset: int, size: int = 1) -> Record:
    place = MessageId(partition, offset)
    return Record(
        message_id=place, payload=b"p" * size, headers=(), delivery_count=1, origin_id=place, enqueued_at_ms=1
    )


def intake_of(*partitions: int, offset: int = 0, most_skipped: int = 10, most_bytes: int = 1_000) -> PolledRecords:
    polled = PolledRecords(most_skipped=most_skipped, most_bytes=most_bytes)
    for partition in partitions:
        polled.give(partition, offset)
    return polled


def places(batch: Batch | None) -> list[MessageId]:
    assert batch is not None
    return [each.message_id for each in batch.records]


def test_a_batch_passes_its_records_and_interleaved_others() -> None:
    polled = intake_of(0)
    polled.add(record(0, 0))
    polled.skip(0, 1)
    polled.add(record(0, 2))
    polled.skip(0, 3)
    batch = polled.cut(10)
    assert places(batch) == [(0, 0), (0, 2)]
    assert batch is not None
    assert batch.spans == {0: Span(0, 4)}


def test_an_offset_stops_before_a_waiting_record() -> None:
    polled = intake_of(0)
    for offset in (2, 5, 9):
        polled.add(record(0, offset))
    first = polled.cut(2)
    assert first == Batch(records=(record(0, 2), record(0, 5)), spans={0: Span(0, 9)})
    assert first is not None
    polled.passed(first)
    assert polled.cut(2) == Batch(records=(record(0, 9),), spans={0: Span(9, 10)})


def test_a_passed_batch_is_not_passed_again() -> None:
    polled = intake_of(0, 1)
    polled.add(record(0, 0))
    batch = polled.cut(1)
    assert batch is not None
    polled.passed(batch)
    polled.add(record(1, 0))
    again = polled.cut(1)
    assert again is not None
    assert again.spans == {1: Span(0, 1)}


def test_a_batch_stays_within_its_byte_limit() -> None:
    polled = intake_of(0, most_bytes=5)
    for offset in range(4):
        polled.add(record(0, offset, size=2))
    assert places(polled.cut(10)) == [(0, 0), (0, 1)]
    assert len(polled) == 2


def test_a_record_larger_than_a_batch_goes_alone() -> None:
    polled = intake_of(0, most_bytes=5)
    polled.add(record(0, 0, size=100))
    polled.add(record(0, 1))
    assert places(polled.cut(10)) == [(0, 0)]
    assert places(polled.cut(10)) == [(0, 1)]


def test_a_message_larger_than_any_of_ours_is_a_dead_letter_alone() -> None:
    intake = PolledRecords(most_skipped=10, most_bytes=1_000, largest=100)
    intake.give(0, 0)
    for offset, size in enumerate((1, 101, 100, 700_000)):
        intake.add(record(0, offset, size))
    found = [batch for _ in range(4) if (batch := intake.cut(10)) is not None]
    assert [(places(batch), batch.dead_reason is not None, batch.part_bytes) for batch in found] == [
        ([MessageId(0, 0)], False, None),
        ([MessageId(0, 1)], True, 500_000),
        ([MessageId(0, 2)], False, None),
        ([MessageId(0, 3)], True, 500_000),
    ]
    assert found[1].dead_reason == "it has 101 bytes, and max-message-bytes is 100"


def test_an_empty_poll_makes_no_batch() -> None:
    assert intake_of(0, 1).cut(10, pass_skipped=True) is None


def test_other_queues_records_are_passed_once_there_are_enough() -> None:
    polled = intake_of(0, 1, most_skipped=3)
    polled.skip(0, 0)
    polled.skip(1, 0)
    assert polled.cut(10) is None
    polled.skip(1, 1)
    batch = polled.cut(10)
    assert batch == Batch(records=(), spans={0: Span(0, 1), 1: Span(0, 2)})
    assert batch is not None
    polled.passed(batch)
    assert polled.cut(10, pass_skipped=True) is None


def test_other_queues_records_are_passed_on_request() -> None:
    polled = intake_of(0)
    polled.skip(0, 0)
    assert polled.cut(10, pass_skipped=True) == Batch(records=(), spans={0: Span(0, 1)})


def test_records_behind_a_waiting_one_are_not_passed() -> None:
    polled = intake_of(0, most_skipped=1)
    polled.add(record(0, 0))
    polled.skip(0, 1)
    assert polled.cut(0, pass_skipped=True) is None
    assert polled.skipped == 1


def test_a_revoked_partition_is_forgotten_with_its_records() -> None:
    polled = intake_of(0, 1)
    for partition in (0, 1):
        polled.add(record(partition, 0))
        polled.skip(partition, 1)
    polled.forget([0])
    assert polled.partitions == {1}
    assert polled.cut(10) == Batch(records=(record(1, 0),), spans={1: Span(0, 2)})


def test_forgetting_all_leaves_nothing_to_pass() -> None:
    polled = intake_of(0, most_skipped=1)
    polled.add(record(0, 0))
    polled.skip(0, 1)
    polled.forget()
    polled.give(0, 0)
    assert polled.cut(10, pass_skipped=True) is None
    assert polled.skipped == 0


def test_records_of_a_forgotten_partition_are_left_out() -> None:
    polled = intake_of(0)
    polled.forget()
    polled.add(record(0, 0))
    polled.skip(0, 1)
    assert len(polled) == 0
    assert polled.skipped == 0


def test_a_repeated_record_is_left_out() -> None:
    polled = intake_of(0)
    polled.add(record(0, 3))
    polled.add(record(0, 3))
    polled.add(record(0, 2))
    polled.skip(0, 1)
    assert places(polled.cut(10)) == [(0, 3)]


def test_a_batch_of_a_forgotten_partition_passes_nothing() -> None:
    polled = intake_of(0)
    polled.add(record(0, 0))
    batch = polled.cut(1)
    assert batch is not None
    polled.forget()
    polled.passed(batch)
    assert polled.partitions == frozenset()


def test_an_old_batch_never_moves_an_offset_back() -> None:
    polled = intake_of(0)
    polled.add(record(0, 0))
    batch = polled.cut(1)
    assert batch is not None
    polled.forget()
    polled.give(0, 7)
    polled.passed(batch)
    polled.add(record(0, 7))
    again = polled.cut(1)
    assert again is not None
    assert again.spans == {0: Span(7, 8)}


def test_a_span_begins_at_an_offset_below_the_log() -> None:
    polled = PolledRecords(most_skipped=10, most_bytes=100)
    polled.give(0, 5)
    polled.move(0, 20)
    assert polled.position(0) == 20
    polled.add(record(0, 21))
    batch = polled.cut(1)
    assert batch is not None
    assert batch.spans == {0: Span(5, 22)}


def test_reading_continues_after_records_removed_by_retention() -> None:
    polled = intake_of(0)
    polled.move(0, 30)
    assert polled.position(0) == 30
    polled.add(record(0, 29))
    assert len(polled) == 0


# Halves


def batch_of(*places: tuple[int, int], **spans: tuple[int, int]) -> Batch:
    """Return a batch. `spans` are given by partition, as `p0=(0, 3)`."""
    return Batch(
        records=tuple(record(*place) for place in places),
        spans={int(name[1:]): Span(*span) for name, span in spans.items()},
    )


def test_halves_meet_at_the_second_halfs_first_record() -> None:
    first, second = batch_of((0, 2), (0, 5), (0, 7), p0=(0, 10)).halves()
    assert first == batch_of((0, 2), p0=(0, 5))
    assert second == batch_of((0, 5), (0, 7), p0=(5, 10))


def test_a_partition_without_records_goes_with_the_second_half() -> None:
    first, second = batch_of((0, 0), (0, 1), p0=(0, 2), p1=(4, 9)).halves()
    assert first == batch_of((0, 0), p0=(0, 1))
    assert second == batch_of((0, 1), p0=(1, 2), p1=(4, 9))


def test_a_partition_of_one_half_alone_stays_whole() -> None:
    first, second = batch_of((0, 3), (1, 4), p0=(0, 8), p1=(2, 6)).halves()
    assert first == batch_of((0, 3), p0=(0, 8))
    assert second == batch_of((1, 4), p1=(2, 6))


def test_a_dead_batch_keeps_its_record_and_its_offsets() -> None:
    batch = batch_of((0, 3), p0=(0, 8))
    dead = batch.dead("too large")
    assert (dead.records, dead.spans, dead.dead_reason) == (batch.records, batch.spans, "too large")
