"""The longest silence: how long nothing was delivered although rows waited. It shows crashes, stalls and take-overs."""

import math
from collections.abc import Iterable


def longest_silence(deliveries: Iterable[tuple[float, float]]) -> float | None:
    """Return the longest time between deliveries while a row waited, in the unit of the times; None without deliveries.

    A delivery is a row's commit time and delivery time. Time in which every committed row was delivered is not silence,
    even if nobody wrote for long.
    """
    ordered = sorted(deliveries, key=lambda delivery: delivery[1])
    if not ordered:
        return None
    longest, waiting_since = 0.0, math.inf
    before = [-math.inf, *(delivered for _, delivered in ordered[:-1])]
    for (committed, delivered), last in zip(reversed(ordered), reversed(before), strict=True):
        waiting_since = min(waiting_since, committed)
        longest = max(longest, delivered - max(last, waiting_since))
    return longest
