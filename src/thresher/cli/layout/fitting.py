"""Fits a table to a width: each row is one line, and a column that does not fit is left out.

1. Columns are added in the order of their importance, if they still fit.
2. If the whole table does not fit, long values of some columns are shortened, and end with "…".
3. The most important column is always shown.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from thresher.core.printable import printable

# The width to which values are shortened.
SHORTEST = 24
# A column's border and the blanks on both sides; the table has one border more.
_BORDER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The table as it is shown; `left_out` are the columns that do not fit."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...] = ()


def fitted(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    importance: Sequence[str] = (),
    shortened: Collection[str] = (),
) -> Fitted:
    """Return the columns that fit. `importance` lists the most important ones first; the others follow in order.

    Without a width, everything fits. Unprintable characters are escaped: a value must not control an operator's
    terminal.
    """
    lines = [tuple(map(_one_line, row)) for row in rows]
    if width is None or _width(columns, lines) <= width:
        return Fitted(columns=tuple(columns), rows=tuple(lines))
    lines = [
        tuple(_cut(value) if name in shortened else value for name, value in zip(columns, row, strict=True))
        for row in lines
    ]
    order = sorted(range(len(columns)), key=lambda place: _rank(columns[place], importance))
    kept = order[:1]
    for place in order[1:]:
        if _width(*_only(columns, lines, [*kept, place])) <= width:
            kept.append(place)
    kept.sort()
    names, values = _only(columns, lines, kept)
    return Fitted(
        columns=tuple(names),
        rows=tuple(map(tuple, values)),
        left_out=tuple(name for place, name in enumerate(columns) if place not in kept),
    )


def _rank(column: str, importance: Sequence[str]) -> int:
    return importance.index(column) if column in importance else len(importance)


def _only(
    columns: Sequence[str], rows: Sequence[Sequence[str]], places: Sequence[int]
) -> tuple[list[str], list[list[str]]]:
    return [columns[place] for place in places], [[row[place] for place in places] for row in rows]


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    widest = [max(map(cell_len, values)) for values in zip(columns, *rows, strict=True)]
    return sum(widest) + _BORDER * len(widest) + 1


def _one_line(value: str) -> str:
    return printable(value.replace("\n", " ").replace("\t", " "))


def _cut(value: str) -> str:
    return value if cell_len(value) <= SHORTEST else f"{set_cell_size(value, SHORTEST - 1)}…"
