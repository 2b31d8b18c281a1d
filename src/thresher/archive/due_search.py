"""How far a run looks for rows that are due: through windows of rows by id, one short statement each.

Rows are stamped about in the order of their ids, so those that are due come first. The search ends after
`YOUNG_WINDOWS` windows in a row with young stamped rows and none that is due. A window of rows that only wait does not
count: they may wait for ever, and rows behind them are due all the same. A young row ends up due by itself, so what is
behind a longer stretch of young rows is late by the archive's age at most.
"""

from dataclasses import dataclass, replace

WINDOW_ROWS = 10_000
YOUNG_WINDOWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Rows behind an id. `last` is the last one's id, None where there is none; not `full`: none comes after them."""

    last: int | None
    due: int
    young: int
    full: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What was found so far: rows that are due, of those `wanted`, and windows in a row with young ones only."""

    wanted: int
    due: int = 0
    young_windows: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """Rows that are due are in the windows that were looked at: enough for a batch, or all that there are."""


@dataclass(frozen=True, slots=True)
class NothingDue:
    """No row is due, as far as this run looks."""


def looked_at(search: Search, window: Window) -> Search | Found | NothingDue:
    """Decide whether to look further."""
    due = search.due + window.due
    young_windows = 0 if window.due else search.young_windows + (window.young > 0)
    over = not window.full or young_windows >= YOUNG_WINDOWS
    if due >= search.wanted or (due and over):
        return Found()
    return NothingDue() if over else replace(search, due=due, young_windows=young_windows)
