"""Among how many ids so many rows should lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.relay.reading.spread import Spread


def test_a_little_less_than_as_many_lay_among() -> None:
    spread = Spread()
    assert spread.of(1_000) == 950
    spread.begin(range(1, 8_000, 8))
    assert spread.of(1_000) == 7_600
    spread.learn(950, 7_600)
    assert spread.of(1_000) == 7_600
    spread.learn(1_900, 7_600)
    assert spread.of(1_000) == 3_800


def test_a_gap_among_the_last_rows_says_nothing_of_the_next() -> None:
    spread = Spread()
    spread.begin([*range(1_000), *range(10**12, 10**12 + 1_000)])
    assert spread.of(1_000) == 950


@pytest.mark.parametrize("ids", [[], [7], [7, 9]], ids=len)
def test_few_rows_say_something_too(ids: list[int]) -> None:
    spread = Spread()
    spread.begin(ids)
    assert 1 <= spread.of(1) <= 2


def test_where_little_is_found_it_grows_step_by_step() -> None:
    spread = Spread()
    spread.learn(1, 1_000_000)
    assert spread.of(1_000) == 3_800
    spread.learn(1, 1_000_000)
    assert spread.of(1_000) == 15_200


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True).map(sorted), st.integers(1, 10_000))
def test_there_is_always_something_to_look_at(ids: list[int], rows: int) -> None:
    spread = Spread()
    spread.begin(ids)
    assert spread.of(rows) >= 1
