"""Decides how far a run searches for rows that are due: window by window in the order of ids, one short statement each.

Rows are stamped roughly in the order of their ids, so due rows come first. The search ends after `YOUNG_WINDOWS`
windows in a row with young stamped rows and no due one. A window of pending rows alone does not count: they may stay
pending for ever while rows after them are due. A young row becomes due with time. So a due row after many young ones is
archived late, by the archive's age at most.
"""

from dataclasses import dataclass, replace

WINDOW_ROWS = 10_000
YOUNG_WINDOWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows after an id. `last` is the last row's id, None without rows. If it is not `full`, it is the last window."""

    last: int | None
    due: int
    young: int
    full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The state of a search: due rows so far, of those `wanted`, and windows in a row with young but no due rows."""

    wanted: int
    due: int = 0
    young_windows: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The windows so far hold enough due rows for a batch, or all that this run can find."""


@dataclass(frozen=True, slots=True)
class NothingDue:
    """No row is due, as far as this run searches."""


def looked_at(search: Search, window: Window) -> Search | Found | NothingDue:
    """Decide whether to search further."""
    due = search.due + window.due
    young_windows = 0 if window.due else search.young_windows + (window.young > 0)
    over = not window.full or young_windows >= YOUNG_WINDOWS
    if due >= search.wanted or (due and over):
        return Found()
    return NothingDue() if over else replace(search, due=due, young_windows=young_windows)
