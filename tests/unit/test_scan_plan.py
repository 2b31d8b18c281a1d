"""The next read, by the decision table and by the safety rule."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.relay.reading.scan_plan import (
    ByBuckets,
    FromHead,
    Observed,
    OldestTransaction,
    Position,
    RowAfter,
    ScanPlan,
    Window,
    may_read_after,
)

NOW = Observed(now=100.0, generation=3, rows=1_000)
POSITION = Position(last=50, oldest_transaction="700", generation=3, until=110.0)


def in_backlog(observed: Observed = NOW) -> ScanPlan:
    """Return a plan whose last read by buckets was cut off by its limit."""
    plan = ScanPlan(32, windows=True)
    plan.read_by_buckets(observed.rows, ByBuckets(1_000), observed)
    return plan


def at_position() -> ScanPlan:
    plan = in_backlog()
    plan.begin(50, "700", NOW)
    return plan


def test_the_first_read_is_by_buckets() -> None:
    assert isinstance(ScanPlan(32, windows=True).next(NOW), ByBuckets)


def test_a_full_read_leads_to_a_window_at_the_head() -> None:
    assert in_backlog().next(NOW) == FromHead()


def test_reading_continues_from_a_position() -> None:
    assert at_position().next(NOW) == Window(POSITION)


@pytest.mark.parametrize(
    "observed",
    [replace(NOW, heavy=True), replace(NOW, left_out=True), replace(NOW, now=100.6)],
    ids=["large rows", "held topics", "a fair read is due"],
)
def test_buckets_are_read_where_windows_are_unsafe(observed: Observed) -> None:
    assert isinstance(at_position().next(observed), ByBuckets)


def test_without_our_index_no_window_is_read() -> None:
    plan = ScanPlan(32, windows=False)
    plan.read_by_buckets(1_000, ByBuckets(1_000), NOW)
    assert isinstance(plan.next(NOW), ByBuckets)


def test_rows_that_went_back_are_read_from_the_head() -> None:
    assert at_position().next(replace(NOW, generation=4)) == FromHead()


def test_a_position_is_given_up_after_a_while() -> None:
    plan = at_position()
    later = replace(NOW, now=110.0)
    plan.read_by_buckets(31, ByBuckets(32, fair=True), later)
    assert plan.next(later) == FromHead()


def test_a_fair_read_asks_each_bucket_for_an_equal_part() -> None:
    assert at_position().next(replace(NOW, now=100.6)) == ByBuckets(32, fair=True)


def test_a_short_fair_read_does_not_end_a_backlog() -> None:
    plan = at_position()
    plan.read_by_buckets(40, ByBuckets(32, fair=True), replace(NOW, now=100.6))
    assert plan.next(replace(NOW, now=100.7)) == Window(POSITION)


def test_windows_that_give_little_are_paused() -> None:
    plan = at_position()
    plan.cut_off(10, NOW)
    for now in (100.0, 100.4):
        observed = replace(NOW, now=now)
        assert plan.next(observed) == ByBuckets(40), "a full window"
        plan.read_by_buckets(1_000, ByBuckets(40), observed)
    assert plan.next(replace(NOW, now=100.6)) == FromHead()


def test_a_window_cut_off_late_restarts_at_the_head() -> None:
    plan = at_position()
    plan.cut_off(900, NOW)
    assert plan.next(NOW) == FromHead()


def test_nothing_pending_ends_the_backlog() -> None:
    plan = at_position()
    plan.idle()
    assert isinstance(plan.next(NOW), ByBuckets)


OLD, OLDEST = RowAfter(age=8, generation=3), OldestTransaction(age=7, generation=3)


def test_a_row_older_than_the_oldest_transaction_may_be_passed() -> None:
    assert may_read_after(OLD, OLDEST)


@pytest.mark.parametrize(
    ("row", "oldest"),
    [
        (replace(OLD, age=7), OLDEST),
        (replace(OLD, age=6), OLDEST),
        (replace(OLD, age=-5), OLDEST),
        (OLD, replace(OLDEST, age=-1)),
        (replace(OLD, generation=4), OLDEST),
        (replace(OLD, left_out=True), OLDEST),
    ],
    ids=[
        "of that very transaction",
        "younger",
        "frozen long ago",
        "a transaction from long ago",
        "rows went back",
        "held",
    ],
)
def test_a_row_may_not_be_passed(row: RowAfter, oldest: OldestTransaction) -> None:
    assert not may_read_after(row, oldest)


INT32 = st.integers(-(2**31), 2**31 - 1)
NEAR = st.integers(0, 8)


@given(
    ages=st.tuples(INT32 | NEAR, INT32 | NEAR), generations=st.tuples(NEAR, NEAR), left_out=st.booleans(), older=NEAR
)
def test_an_older_row_may_be_passed_too(
    ages: tuple[int, int], generations: tuple[int, int], left_out: bool, older: int
) -> None:
    row = RowAfter(age=ages[0], generation=generations[0], left_out=left_out)
    oldest = OldestTransaction(age=ages[1], generation=generations[1])
    if may_read_after(row, oldest):
        assert row.age > oldest.age
        assert (generations[0], left_out) == (generations[1], False)
        assert may_read_after(replace(row, age=row.age + older), oldest)


@pytest.mark.parametrize(("buckets", "rows", "each"), [(32, 10_000, 391), (1, 10_000, 10_000), (64, 10, 1)])
def test_one_bucket_gives_about_an_equal_part(buckets: int, rows: int, each: int) -> None:
    assert ScanPlan(buckets, windows=False).each(rows) == each


def test_a_window_is_as_wide_as_rows_lie_apart() -> None:
    plan = ScanPlan(32, windows=True)
    assert plan.width(1_000) == 950
    plan.learn_width(100, 1_000)
    assert plan.width(1_000) == 3_800, "four times as wide at most"
    plan.learn_width(100, 1_000)
    assert plan.width(1_000) == 9_500
    plan.learn_width(1_000, 1_000)
    assert plan.width(1_000) == 950


def test_one_bucket_alone_soon_gives_whole_reads() -> None:
    plan = ScanPlan(32, windows=False)
    for _ in range(6):
        plan.learn_share(plan.each(10_000), 32, 10_000)
    assert plan.each(10_000) == 10_000
    for _ in range(6):
        plan.learn_share(10_000, 1, 10_000)
    assert plan.each(10_000) == 391


@given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 10**9)), max_size=20))
def test_a_window_is_never_empty_and_grows_step_by_step(found: list[tuple[int, int]]) -> None:
    plan = ScanPlan(32, windows=True, shards=2)
    for rows, ids in found:
        before = plan.width(1_000)
        plan.learn_width(rows, ids)
        assert 1 <= plan.width(1_000) <= 4 * before + 4
