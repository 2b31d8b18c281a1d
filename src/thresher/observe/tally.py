"""Where figures go: the one protocol through which every part reports what it does."""

from collections.abc import Iterable, Mapping
from typing import Protocol

Number = int | float


class Counts(Protocol):
    """Takes figures by name. The reporter does not know how they are shown."""

    def count(self, name: str, amount: Number = 1) -> None:
        """Add to a figure that only grows."""


class Tally(Counts, Protocol):
    """Takes figures of both sorts."""

    def gauge(self, name: str, value: Number) -> None:
        """Set a figure that goes up and down."""


def summed(parts: Iterable[Mapping[str, Number]]) -> dict[str, Number]:
    """Return figures of several reporters together."""
    sums: dict[str, Number] = {}
    for part in parts:
        for name, value in part.items():
            sums[name] = sums.get(name, 0) + value
    return sums
