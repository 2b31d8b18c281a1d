"""Batches of changes, cut and mixed in any way, against a model that takes one record after another."""

from collections.abc import Iterable
from itertools import groupby

from hypothesis import example, given
from hypothesis import strategies as st

from tests.capture.model import CUTS, ModelRows, Written, cut, is_later, logs, take
from thresher.capture.positions import Beyond, Covered, Due, Part, judge
from thresher.capture.record import CapturedRecord
from thresher.capture.rows.guard import Change, Guard, rounds


def applied(rows: ModelRows, records: Iterable[Written]) -> None:
    """Apply a batch as a table's target does: rounds of writes, then deletes. The model stands for the statements."""
    deletes: list[Change] = []
    for some in rounds(map(change_of, records)):
        assert len({change.key for change in some}) == len(some)
        for change in some:
            if change.values is None:
                deletes.append(change)
            else:
                take(rows, written_of(change))
    for change in deletes:
        take(rows, written_of(change))


def change_of(record: Written) -> Change:
    values = None if record.value is None else (b"%d" % record.value,)
    return Change((b"%d" % record.key,), values, Guard(record.partition, record.offset, record.time))


def written_of(change: Change) -> Written:
    value = None if change.values is None else int(change.values[0] or b"")
    return Written(int(change.key[0]), value, *change.guard)


GUARDS = st.builds(Guard, st.integers(0, 2), st.integers(0, 3), st.integers(0, 3))


@given(GUARDS, GUARDS)
def test_a_guard_decides_like_the_model(one: Guard, other: Guard) -> None:
    assert one.after(other) == is_later(Written(0, 0, *one), *other)
    latest = max(one.timestamp_ms, other.timestamp_ms) if one.partition == other.partition else one.timestamp_ms
    assert one.following(other) == Guard(one.partition, one.offset, latest)


@given(logs(1, deletes=True), CUTS)
def test_batches_of_one_partition_leave_the_last_records(log: list[Written], cuts: list[int]) -> None:
    rows: ModelRows = {}
    for batch in cut(log, cuts):
        applied(rows, batch)
    last = {record.key: record for record in log}
    assert {key: (value, offset) for key, (value, _, offset, _) in rows.items()} == {
        key: (record.value, record.offset) for key, record in last.items() if record.value is not None
    }


@given(logs(3, deletes=False), CUTS, st.randoms(use_true_random=False))
def test_any_mix_and_cut_of_partitions_gives_equal_rows(log: list[Written], cuts: list[int], draw: object) -> None:
    one_by_one: ModelRows = {}
    for record in log:
        take(one_by_one, record)
    # Only the order within each partition is guaranteed.
    by_partition = sorted(log, key=lambda each: (each.partition, each.offset))
    waiting = {partition: list(some) for partition, some in groupby(by_partition, lambda each: each.partition)}
    mixed: list[Written] = []
    while waiting:
        partition = draw.choice(sorted(waiting))  # type: ignore[attr-defined]
        mixed.append(waiting[partition].pop(0))
        if not waiting[partition]:
            del waiting[partition]
    rows: ModelRows = {}
    for batch in cut(mixed, cuts):
        applied(rows, batch)
    assert rows == one_by_one


@given(logs(1, deletes=False), CUTS)
def test_records_that_come_again_change_nothing(log: list[Written], cuts: list[int]) -> None:
    rows: ModelRows = {}
    applied(rows, log)
    before = dict(rows)
    for batch in cut(log, cuts):
        # A batch with repeats: the newest record of a key counts.
        applied(rows, [*batch, *batch[:-1]])
    assert rows == before


def test_a_row_decides_between_partitions_of_a_batch() -> None:
    rows: ModelRows = {}
    applied(rows, [Written(1, 1, 0, 0, 10)])
    # The later record of the row's own partition wins, although the other partition's record has a later timestamp.
    applied(rows, [Written(1, 2, 0, 1, 5), Written(1, 3, 1, 0, 7)])
    assert rows == {1: (2, 0, 1, 10)}


def records(offsets: Iterable[int]) -> list[CapturedRecord]:
    return [CapturedRecord("t", 0, offset, 0, None, None) for offset in offsets]


@given(st.sets(st.integers(0, 60)), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 20))))
# The second reader's part begins below the stored offset and ends above it.
@example({3, 15}, [(0, 1, 10), (1, 1, 20)])
def test_any_mix_of_readers_applies_each_record_once(log_: set[int], steps: list[tuple[int, int, int]]) -> None:
    """Readers go on, start over, pause and come back late: only the stored offset decides."""
    positions, stored, seen = [0, 0, 0], 0, []
    for reader, elsewhere, length in steps:
        if elsewhere % 7 == 0:
            positions[reader] = elsewhere
        start = positions[reader]
        part = Part("t", 0, start, start + length, records(sorted(o for o in log_ if start <= o < start + length)))
        verdict = judge(part, stored)
        positions[reader] = start + length
        if isinstance(verdict, Due):
            assert start <= stored < part.end
            seen += [record.offset for record in verdict.records]
            stored = verdict.end
        else:
            assert isinstance(verdict, Beyond) == (start > stored)
            assert isinstance(verdict, Covered) == (part.end <= stored)
            positions[reader] = verdict.stored
    assert seen == sorted(offset for offset in log_ if offset < stored)


def test_adjacent_parts_join_into_one() -> None:
    first, second = Part("t", 0, 3, 5), Part("t", 0, 5, 9, records([7]))
    assert first.joined(second) == Part("t", 0, 3, 9, records([7]))
