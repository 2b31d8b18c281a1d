"""How often values fell where: fixed bounds, and a count for each bucket.

A task adds to plain counts, which travel like any other figure and are summed over attempts and shards; the driver
reads them back. Counts are each bucket's own, not cumulative: sums of such counts are such counts again.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf, isfinite, isnan
from typing import Self

from thresher.observe.tally import Counts, Number


@dataclass(frozen=True, slots=True)
class Scale:
    """Where the buckets of a histogram end: each bound belongs to the bucket below it, and the last has none."""

    name: str
    bounds: tuple[float, ...]
    # Made once: a transaction must not cost the making of names.
    figures: tuple[str, ...] = field(init=False, repr=False, compare=False)
    sum_figure: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.bounds, self.bounds[1:], strict=False))
        if not self.bounds or not rising or not all(map(isfinite, self.bounds)):
            raise ValueError(f"the bounds of {self.name} must be finite and rise: {self.bounds}")
        places = range(len(self.bounds) + 1)
        object.__setattr__(self, "figures", tuple(f"{self.name}.{place}" for place in places))
        object.__setattr__(self, "sum_figure", f"{self.name}.sum")

    def observe(self, tally: Counts, value: float, weight: int = 1) -> None:
        """Count a value as often as its weight says. A NaN is refused: it would spoil every sum after it."""
        if isnan(value) or weight <= 0:
            raise ValueError(f"{self.name} cannot count {value} {weight} times")
        tally.count(self.figures[bisect_left(self.bounds, value)], weight)
        tally.count(self.sum_figure, value * weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The counts on a scale."""

    scale: Scale
    counts: tuple[int, ...]
    sum: float

    @classmethod
    def read(cls, scale: Scale, figures: Mapping[str, Number]) -> Self:
        """Return what figures say; those that nobody counted are 0."""
        counts = tuple(int(figures.get(name, 0)) for name in scale.figures)
        return cls(scale=scale, counts=counts, sum=float(figures.get(scale.sum_figure, 0)))

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """Return each bound with how many values are at or below it; the last bound is infinite and has all."""
        return list(zip((*self.scale.bounds, inf), accumulate(self.counts), strict=True))
