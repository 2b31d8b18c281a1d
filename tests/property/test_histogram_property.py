"""A histogram counts every observation once, however observations are split among attempts and shards."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.observe.figure_sink import Number, summed
from thresher.observe.histogram import Histogram, Scale

BOUNDS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20, unique=True).map(sorted).map(tuple)
# Each observation: a value, its weight, and its reporter.
SEEN = st.lists(st.tuples(st.floats(-2e6, 2e6), st.integers(1, 10_000), st.integers(0, 3)), max_size=50)


class Reporter:
    def __init__(self) -> None:
        self.figures: dict[str, Number] = defaultdict(int)

    def count(self, name: str, amount: Number = 1) -> None:
        self.figures[name] += amount


@given(BOUNDS, SEEN)
def test_counts_of_all_reporters_add_up_to_the_observations(
    bounds: tuple[float, ...], seen: list[tuple[float, int, int]]
) -> None:
    scale = Scale("x", bounds)
    reporters = [Reporter() for _ in range(4)]
    for value, weight, reporter in seen:
        scale.observe(reporters[reporter], value, weight)
    found = Histogram.read(scale, summed(reporter.figures for reporter in reporters))
    assert found.count == sum(weight for _, weight, _ in seen)
    assert found.sum == pytest.approx(sum(value * weight for value, weight, _ in seen), rel=1e-9, abs=1e-3)
    for bound, count in found.cumulative():
        assert count == sum(weight for value, weight, _ in seen if value <= bound)
    assert all(low <= high for (_, low), (_, high) in pairwise(found.cumulative()))


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0), (1.0, float("inf")), (float("nan"),)])
def test_the_bounds_of_a_scale_must_rise(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be finite and rise"):
        Scale("x", bounds)


@pytest.mark.parametrize(("value", "weight"), [(float("nan"), 1), (1.0, 0), (1.0, -1)])
def test_values_that_would_spoil_the_sums_are_refused(value: float, weight: int) -> None:
    reporter = Reporter()
    with pytest.raises(ValueError, match="cannot count"):
        Scale("x", (1.0,)).observe(reporter, value, weight)
    assert not reporter.figures
