"""Rounds of measurements: the sides in turns, and the middle of what was found.

A machine changes while it is measured on. Sides that take turns meet the same changes; a median leaves outliers out.
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
    """Measure every side once a round, each first in every other round; return what was found, by side.

    `warm` rounds before are not counted. `tell` is told each measurement that counts.
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
    """Return the median of each figure over rounds that found several at once, such as ratios within a round."""
    return {name: statistics.median(each[name] for each in rounds if name in each) for name in rounds[0]}
