"""The longest time without a delivery while rows waited."""

from hypothesis import given
from hypothesis import strategies as st

from thresher.testing.silence import longest_silence

TIMES = st.integers(0, 60)


def test_a_history_without_deliveries_has_no_silence() -> None:
    assert longest_silence([]) is None


def test_a_row_that_waits_is_a_silence_from_its_commit() -> None:
    assert longest_silence([(10, 13)]) == 3


def test_a_silence_begins_with_the_delivery_before() -> None:
    assert longest_silence([(0, 1), (0, 2), (0, 9), (0, 10)]) == 7


def test_time_in_which_nothing_waits_is_no_silence() -> None:
    assert longest_silence([(0, 1), (100, 102)]) == 2


def test_an_overtaking_row_does_not_hide_anothers_wait() -> None:
    # The second row was committed later and delivered sooner. From then on the first row waits alone.
    assert longest_silence([(0, 20), (5, 6)]) == 14


def test_a_delivery_before_its_commit_was_answered_is_no_silence() -> None:
    assert longest_silence([(10, 9)]) == 0


@given(st.lists(st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair))), min_size=1, max_size=20))
def test_the_longest_silence_agrees_with_a_naive_count(rows: list[tuple[int, int]]) -> None:
    longest = run = 0
    for moment in range(60):
        # `moment` is the start of one unit of time.
        if moment in {delivered for _, delivered in rows}:
            run = 0
        waits = any(committed <= moment < delivered for committed, delivered in rows)
        run = run + 1 if waits else 0
        longest = max(longest, run)
    assert longest_silence(rows) == longest
