"""Parses Go's durations, such as 5s, 100ms or 1m30s, for files in goharvest's format."""

import re
from decimal import Decimal

_NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # the micro sign
    "μs": 1_000,  # the Greek letter
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
# The longest Go duration: 292 years.
_MOST = 2**63 - 1


def seconds_of(given: object) -> float:
    """Return a duration in seconds. A bare whole number is in nanoseconds, as in Go.

    Raises `ValueError` for a text that Go cannot parse, and for a negative duration.
    """
    if isinstance(given, int) and not isinstance(given, bool):
        nanoseconds = Decimal(given)
    elif isinstance(given, str):
        nanoseconds = _parse(given)
    else:
        raise ValueError(_NEEDED)  # noqa: TRY004 - the value is wrong, of whatever type
    if not 0 <= nanoseconds <= _MOST:
        raise ValueError("a duration from 0 to 292 years is needed")
    return float(nanoseconds / _NANOSECONDS["s"])


_NEEDED = "a duration is needed, such as 5s, 100ms or 1m30s"


def _parse(text: str) -> Decimal:
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return Decimal(0)
    parts = _PART.findall(rest)
    if not parts or "".join(number + unit for number, unit in parts) != rest:
        raise ValueError(_NEEDED)
    return sign * sum((Decimal(number) * _NANOSECONDS[unit] for number, unit in parts), Decimal(0))
