"""Rounds of measurements: the sides take turns, and the medians count.

The speed of a machine changes during a bench. Sides that take turns meet the same changes; a median ignores outliers.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from bench.measuring.progress import measuring

Figures = dict[str, float]
T = TypeVar("T")


def in_turns(
    sides: Mapping[str, Callable[[], T]],
    rounds: int,
    *,
    warm: int = 0,
    tell: Callable[[str, T], None] = lambda _name, _found: None,
) -> dict[str, list[T]]:
    """Measure every side once a round, in alternating order; return the measurements by side.

    `warm` rounds before are not counted. `tell` is called for each measurement that counts.
    """
    found: dict[str, list[T]] = {name: [] for name in sides}
    with measuring((rounds + warm) * len(sides)) as begins:
        for number in range(-warm, rounds):
            for name, measure in list(sides.items())[:: -1 if number % 2 else 1]:
                begins(name)
                measured = measure()
                if number >= 0:
                    found[name].append(measured)
                    tell(name, measured)
    return found


def medians(found: Mapping[str, Sequence[float]]) -> Figures:
    """Return the median of each side."""
    return {name: statistics.median(each) for name, each in found.items()}


def middle(rounds: Sequence[Mapping[str, float]]) -> Figures:
    """Return the median of each figure over rounds with several figures, such as ratios within a round."""
    return {name: statistics.median(each[name] for each in rounds if name in each) for name in rounds[0]}
