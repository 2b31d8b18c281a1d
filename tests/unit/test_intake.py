"""Polled records are cut into batches, and offsets never pass a record of our queue that is in no batch."""

from thresher.queue.hand_off.intake import Batch, Intake, Span
from thresher.queue.wire.marker import MessageId
from thresher.queue.wire.record import Record


def record(partition: int, offset: int, size: int = 1) -> Record:
    place = MessageId(partition, offset)
    return Record(
        message_id=place, payload=b"p" * size, headers=(), delivery_count=1, origin_id=place, enqueued_at_ms=1
    )


def intake_of(*partitions: int, offset: int = 0, most_skipped: int = 10, most_bytes: int = 1_000) -> Intake:
    intake = Intake(most_skipped=most_skipped, most_bytes=most_bytes)
    for partition in partitions:
        intake.give(partition, offset)
    return intake


def places(batch: Batch | None) -> list[MessageId]:
    assert batch is not None
    return [each.message_id for each in batch.records]


def test_a_batch_passes_its_records_and_interleaved_others() -> None:
    intake = intake_of(0)
    intake.add(record(0, 0))
    intake.skip(0, 1)
    intake.add(record(0, 2))
    intake.skip(0, 3)
    batch = intake.cut(10)
    assert places(batch) == [(0, 0), (0, 2)]
    assert batch is not None
    assert batch.spans == {0: Span(0, 4)}


def test_an_offset_stops_before_a_waiting_record() -> None:
    intake = intake_of(0)
    for offset in (2, 5, 9):
        intake.add(record(0, offset))
    first = intake.cut(2)
    assert first == Batch(records=(record(0, 2), record(0, 5)), spans={0: Span(0, 9)})
    assert first is not None
    intake.passed(first)
    assert intake.cut(2) == Batch(records=(record(0, 9),), spans={0: Span(9, 10)})


def test_a_passed_batch_is_not_passed_again() -> None:
    intake = intake_of(0, 1)
    intake.add(record(0, 0))
    batch = intake.cut(1)
    assert batch is not None
    intake.passed(batch)
    intake.add(record(1, 0))
    again = intake.cut(1)
    assert again is not None
    assert again.spans == {1: Span(0, 1)}


def test_a_batch_stays_within_its_byte_limit() -> None:
    intake = intake_of(0, most_bytes=5)
    for offset in range(4):
        intake.add(record(0, offset, size=2))
    assert places(intake.cut(10)) == [(0, 0), (0, 1)]
    assert len(intake) == 2


def test_a_record_larger_than_a_batch_goes_alone() -> None:
    intake = intake_of(0, most_bytes=5)
    intake.add(record(0, 0, size=100))
    intake.add(record(0, 1))
    assert places(intake.cut(10)) == [(0, 0)]
    assert places(intake.cut(10)) == [(0, 1)]


def test_an_empty_poll_makes_no_batch() -> None:
    assert intake_of(0, 1).cut(10, pass_skipped=True) is None


def test_other_queues_records_are_passed_once_there_are_enough() -> None:
    intake = intake_of(0, 1, most_skipped=3)
    intake.skip(0, 0)
    intake.skip(1, 0)
    assert intake.cut(10) is None
    intake.skip(1, 1)
    batch = intake.cut(10)
    assert batch == Batch(records=(), spans={0: Span(0, 1), 1: Span(0, 2)})
    assert batch is not None
    intake.passed(batch)
    assert intake.cut(10, pass_skipped=True) is None


def test_other_queues_records_are_passed_on_request() -> None:
    intake = intake_of(0)
    intake.skip(0, 0)
    assert intake.cut(10, pass_skipped=True) == Batch(records=(), spans={0: Span(0, 1)})


def test_records_behind_a_waiting_one_are_not_passed() -> None:
    intake = intake_of(0, most_skipped=1)
    intake.add(record(0, 0))
    intake.skip(0, 1)
    assert intake.cut(0, pass_skipped=True) is None
    assert intake.skipped == 1


def test_a_revoked_partition_is_forgotten_with_its_records() -> None:
    intake = intake_of(0, 1)
    for partition in (0, 1):
        intake.add(record(partition, 0))
        intake.skip(partition, 1)
    intake.forget([0])
    assert intake.partitions == {1}
    assert intake.cut(10) == Batch(records=(record(1, 0),), spans={1: Span(0, 2)})


def test_forgetting_all_leaves_nothing_to_pass() -> None:
    intake = intake_of(0, most_skipped=1)
    intake.add(record(0, 0))
    intake.skip(0, 1)
    intake.forget()
    intake.give(0, 0)
    assert intake.cut(10, pass_skipped=True) is None
    assert intake.skipped == 0


def test_records_of_a_forgotten_partition_are_left_out() -> None:
    intake = intake_of(0)
    intake.forget()
    intake.add(record(0, 0))
    intake.skip(0, 1)
    assert len(intake) == 0
    assert intake.skipped == 0


def test_a_repeated_record_is_left_out() -> None:
    intake = intake_of(0)
    intake.add(record(0, 3))
    intake.add(record(0, 3))
    intake.add(record(0, 2))
    intake.skip(0, 1)
    assert places(intake.cut(10)) == [(0, 3)]


def test_a_batch_of_a_forgotten_partition_passes_nothing() -> None:
    intake = intake_of(0)
    intake.add(record(0, 0))
    batch = intake.cut(1)
    assert batch is not None
    intake.forget()
    intake.passed(batch)
    assert intake.partitions == frozenset()


def test_an_old_batch_never_moves_an_offset_back() -> None:
    intake = intake_of(0)
    intake.add(record(0, 0))
    batch = intake.cut(1)
    assert batch is not None
    intake.forget()
    intake.give(0, 7)
    intake.passed(batch)
    intake.add(record(0, 7))
    again = intake.cut(1)
    assert again is not None
    assert again.spans == {0: Span(7, 8)}


def test_a_span_begins_at_an_offset_below_the_log() -> None:
    intake = Intake(most_skipped=10, most_bytes=100)
    intake.give(0, 5)
    intake.move(0, 20)
    assert intake.position(0) == 20
    intake.add(record(0, 21))
    batch = intake.cut(1)
    assert batch is not None
    assert batch.spans == {0: Span(5, 22)}


def test_reading_continues_after_records_removed_by_retention() -> None:
    intake = intake_of(0)
    intake.move(0, 30)
    assert intake.position(0) == 30
    intake.add(record(0, 29))
    assert len(intake) == 0


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
