"""The descriptions of a setting's values, for the help of its flag and its row in the docs."""

import enum
from collections.abc import Sequence

from thresher.config.setting import Bounds, Kind, Setting


def first_sentence(setting: Setting) -> str:
    """Return the first sentence of the description, without its full stop."""
    return setting.description.split(". ")[0].removesuffix(".")


def one_of(choices: Sequence[str]) -> str:
    """Return choices as words: a, b or c."""
    return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))


def range_text(bounds: Bounds, *, thousands: str = "") -> str:
    """Return the description of bounds; an empty text if there are none."""
    low, high = bounds.least, bounds.most
    if low is not None and high is not None:
        return f"{number(low, thousands)} to {number(high, thousands)}"
    words = (("at least", low), ("more than", bounds.above), ("at most", high), ("less than", bounds.below))
    return ", ".join(f"{word} {number(bound, thousands)}" for word, bound in words if bound is not None)


def default_text(setting: Setting, *, thousands: str = "") -> str:
    """Return the description of the default; an empty text if there is none."""
    default = setting.default
    if setting.default_text is not None or default is None or setting.kind in {Kind.LIST, Kind.SECTION}:
        return setting.default_text or ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, enum.Enum):
        return str(default.value)
    return number(default, thousands) if isinstance(default, int | float) else str(default)


def number(value: float, thousands: str = "") -> str:
    """Return a number for people, with a separator between thousands."""
    if not float(value).is_integer():
        return f"{value:g}"
    return f"{int(value):,}".replace(",", thousands)
