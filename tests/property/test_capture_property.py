"""Batches of changes, cut and mixed in any way, against a table that takes one record after another."""

from collections.abc import Iterable
from itertools import groupby, pairwise

from hypothesis import given
from hypothesis import strategies as st

from thresher.capture.positions import Beyond, Covered, Due, Part, judge
from thresher.capture.record import CapturedRecord
from thresher.capture.rows.guard import Change, Guard, rounds

Rows = dict[tuple[bytes, ...], tuple[tuple[bytes | None, ...], Guard]]


def written(rows: Rows, changes: Iterable[Change]) -> None:
    """Do what the two statements do, each for one key at most once."""
    for change in changes:
        found = rows.get(change.key)
        if found is not None and not change.guard.after(found[1]):
            continue
        if change.values is None:
            rows.pop(change.key, None)
        else:
            guard = change.guard if found is None else change.guard.following(found[1])
            rows[change.key] = (change.values, guard)


def applied(rows: Rows, changes: Iterable[Change]) -> None:
    """Apply a batch as a table's target does: rounds of writes, then deletes."""
    deletes = []
    for some in rounds(changes):
        assert len({change.key for change in some}) == len(some)
        written(rows, [change for change in some if change.values is not None])
        deletes += [change for change in some if change.values is None]
    written(rows, deletes)


def log(partitions: int, deletes: bool) -> st.SearchStrategy[list[Change]]:
    """Records of a few keys in a few partitions; clocks may go back."""
    one = st.tuples(
        st.integers(0, partitions - 1),
        st.integers(0, 2),
        st.integers(0, 5),
        st.booleans() if deletes else st.just(False),
    )

    def made(drawn: list[tuple[int, int, int, bool]]) -> list[Change]:
        return [
            Change((b"%d" % key,), None if dead else (b"%d" % offset,), Guard(partition, offset, at))
            for offset, (partition, key, at, dead) in enumerate(drawn)
        ]

    return st.lists(one, max_size=40).map(made)


def batches(changes: list[Change], cuts: list[int]) -> list[list[Change]]:
    edges = sorted({0, len(changes), *(cut % (len(changes) + 1) for cut in cuts)})
    return [changes[begin:end] for begin, end in pairwise(edges)]


def _without_times(rows: Rows) -> dict[tuple[bytes, ...], object]:
    return {key: (values, guard.partition, guard.offset) for key, (values, guard) in rows.items()}


CUTS = st.lists(st.integers(0, 40), max_size=6)


@given(log(1, deletes=True), CUTS)
def test_batches_of_one_partition_leave_what_single_records_leave(changes: list[Change], cuts: list[int]) -> None:
    one_by_one: Rows = {}
    written(one_by_one, changes)
    rows: Rows = {}
    for batch in batches(changes, cuts):
        applied(rows, batch)
    # A delete takes the guard with it, and the latest timestamp: in one partition it decides nothing.
    assert _without_times(rows) == _without_times(one_by_one)
    last = {change.key: change for change in changes}
    assert {key: values for key, (values, _) in rows.items()} == {
        key: change.values for key, change in last.items() if change.values is not None
    }


@given(log(3, deletes=False), CUTS, st.randoms(use_true_random=False))
def test_partitions_may_be_mixed_and_cut_in_any_way(changes: list[Change], cuts: list[int], draw: object) -> None:
    one_by_one: Rows = {}
    written(one_by_one, changes)
    # Each partition keeps its order, and nothing else is promised.
    waiting = {
        partition: list(some)
        for partition, some in groupby(sorted(changes, key=lambda each: each.guard), lambda each: each.guard.partition)
    }
    mixed: list[Change] = []
    while waiting:
        partition = draw.choice(sorted(waiting))  # type: ignore[attr-defined]
        mixed.append(waiting[partition].pop(0))
        if not waiting[partition]:
            del waiting[partition]
    rows: Rows = {}
    for batch in batches(mixed, cuts):
        applied(rows, batch)
    assert rows == one_by_one


@given(log(1, deletes=False), st.integers(0, 40), st.integers(0, 40))
def test_records_that_come_again_change_nothing(changes: list[Change], first: int, last: int) -> None:
    rows: Rows = {}
    applied(rows, changes)
    before = dict(rows)
    applied(rows, changes[first:last])
    assert rows == before


def test_a_row_decides_between_partitions_of_a_batch() -> None:
    rows: Rows = {}
    applied(rows, [Change((b"k",), (b"first",), Guard(0, 0, 10))])
    # The later record of its own partition counts, though another one has a later timestamp than that.
    applied(rows, [Change((b"k",), (b"second",), Guard(0, 1, 5)), Change((b"k",), (b"other",), Guard(1, 0, 7))])
    assert rows == {(b"k",): ((b"second",), Guard(0, 1, 10))}


def records(offsets: Iterable[int]) -> list[CapturedRecord]:
    return [CapturedRecord("t", 0, offset, 0, None, None) for offset in offsets]


@given(st.sets(st.integers(0, 60)), st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 20))))
def test_any_mix_of_readers_applies_each_record_once(log_: set[int], steps: list[tuple[int, int, int]]) -> None:
    """Readers go on, start over, stand still and come back late: the stored offset alone decides."""
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


def test_parts_that_follow_each_other_are_one() -> None:
    first, second = Part("t", 0, 3, 5), Part("t", 0, 5, 9, records([7]))
    assert first.joined(second) == Part("t", 0, 3, 9, records([7]))
