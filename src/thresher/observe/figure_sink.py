"""The protocol through which every part reports its figures, which are counts and gauges."""

from collections.abc import Iterable, Mapping
from typing import Protocol

Number = int | float
# The gauge of a shard: for how many whole seconds it has taken work and finished none.
STANDING = "standing_seconds"


class CountSink(Protocol):
    """Takes counts by name. The reporter does not know how they are shown."""

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a figure that only grows."""


class FigureSink(CountSink, Protocol):
    """Takes counts and gauges."""

    def gauge(self, name: str, value: Number) -> None:
        """Set a figure that goes up and down."""


def summed(parts: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    """Return the figures of several reporters, summed by name."""
    sums: dict[str, Number] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums.get(name, 0) + value
    return sums
