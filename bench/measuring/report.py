"""Prints figures: a table for people, and on the last line one JSON object for programs."""

import json
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measuring.place import machine

console = Console()


def say(text: str) -> None:
    """Print a line of progress."""
    console.print(text, soft_wrap=True, highlight=False)


def measured(name: str, value: float) -> None:
    """Print a measurement as progress."""
    say(f"{name}: {_shown(value)}")


def report(
    title: str, figures: Mapping[str, float], *, wanted: Mapping[str, str], settings: Mapping[str, Any], note: str
) -> None:
    """Print the figures with their limits, the settings of the measurement, and all of it as JSON."""
    table = Table("figure", "value", "wanted", title=title)
    for name, value in figures.items():
        table.add_row(name, _shown(value), wanted.get(name, ""))
    console.print(table)
    say(note)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({**rounded, "settings": {**settings, "machine": machine()}}))


def _shown(value: float) -> str:
    """Return a figure with its significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3f}"
