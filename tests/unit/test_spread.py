"""Among how many ids so many rows should lie."""

from hypothesis import given
from hypothesis import strategies as st

from thresher.relay.spread import Spread


def test_a_little_less_than_as_many_lay_among() -> None:
    spread = Spread()
    spread.begin(500, 4_000)
    assert spread.of(1_000) == 7_600
    spread.learn(950, 7_600)
    assert spread.of(1_000) == 7_600
    spread.learn(1_900, 7_600)
    assert spread.of(1_000) == 3_800


def test_where_nothing_is_found_it_grows_step_by_step() -> None:
    spread = Spread()
    assert spread.of(1_000) == 950
    spread.learn(0, 950)
    assert spread.of(1_000) == 3_800
    spread.learn(1, 1_000_000)
    assert spread.of(1_000) == 15_200


def test_there_is_always_something_to_look_at() -> None:
    spread = Spread()
    spread.begin(10, 10)
    assert spread.of(1) == 1


@given(ids=st.integers(1, 2**62), rows=st.integers(1, 10_000))
def test_a_window_that_holds_too_many_becomes_narrower_until_it_cannot(ids: int, rows: int) -> None:
    spread = Spread()
    spread.begin(1, ids)
    most = 2 * rows
    for _ in range(100):
        width = spread.of(rows)
        if width < most:
            break
        # However many there are, no more are given.
        spread.learn(most, width)
        assert spread.of(rows) < width
    assert spread.of(rows) < most
