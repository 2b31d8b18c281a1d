"""Histograms with fixed bucket bounds, kept as plain counts.

A task counts each bucket under a name of its own. The driver receives these counts like all others, sums them over
attempts and shards, and reads them back as a histogram. Counts are per bucket, not cumulative, so that sums are valid.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf, isfinite, isnan
from typing import Self

from thresher.observe.figure_sink import CountSink, Number


@dataclass(frozen=True, slots=True)
class Scale:
    """The upper bounds of a histogram's buckets. A bound belongs to its bucket; the last bucket has no bound."""

    name: str
    bounds: tuple[float, ...]
    # Made once, because making names for every transaction would be slow.
    figures: tuple[str, ...] = field(init=False, repr=False, compare=False)
    sum_figure: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.bounds, self.bounds[1:], strict=False))
        if not self.bounds or not rising or not all(map(isfinite, self.bounds)):
            raise ValueError(f"the bounds of {self.name} must be finite and rise: {self.bounds}")
        places = range(len(self.bounds) + 1)
        object.__setattr__(self, "figures", tuple(f"{self.name}.{place}" for place in places))
        object.__setattr__(self, "sum_figure", f"{self.name}.sum")

    def observe(self, counts: CountSink, value: float, weight: int = 1) -> None:
        """Count a value `weight` times. A NaN is refused, because it would spoil every later sum."""
        if isnan(value) or weight <= 0:
            raise ValueError(f"{self.name} cannot count {value} {weight} times")
        counts.count(self.figures[bisect_left(self.bounds, value)], weight)
        counts.count(self.sum_figure, value * weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The counts of a histogram, by bucket."""

    scale: Scale
    counts: tuple[int, ...]
    sum: float

    @classmethod
    def read(cls, scale: Scale, figures: Mapping[str, Number]) -> Self:
        """Read a histogram back from figures. A bucket without a figure counts 0."""
        counts = tuple(int(figures.get(name, 0)) for name in scale.figures)
        return cls(scale=scale, counts=counts, sum=float(figures.get(scale.sum_figure, 0)))

    @property
    def count(self) -> int:
        """The number of values that were counted."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return each bound with the number of values at or below it. The last bound is infinite."""
        return list(zip((*self.scale.bounds, inf), accumulate(self.counts), strict=True))
