"""Writes `src/thresher/config/variables.txt`: every environment variable that Thresher reads, without its prefix.

Run it after a change of a form or of a command's options: a test compares the file with both.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import typer

from thresher.capture.configuration import CaptureForm
from thresher.cli.app import app
from thresher.config.setting import settings_of
from thresher.harvest.form import RelayForm
from thresher.queue.configuration import QueueConfig
from thresher.tail.configuration import TailForm
from thresher.tracker.configuration import TrackerForm

SOURCE = Path(__file__).parents[1] / "src" / "thresher"
PAGE = SOURCE / "config" / "variables.txt"
# Variables that the test suite sets for its own processes.
OF_TESTS = ("TEST_QUICK", "TEST_RUN", "TEST_STACK")


def of_forms() -> Iterator[str]:
    """Give the variables of every setting."""
    for form in (RelayForm, TailForm, CaptureForm, QueueConfig, TrackerForm):
        for setting in settings_of(form):
            yield from setting.variables
            yield from (each.name.upper() for each in setting.shorthands)
            if setting.secret is not None:
                yield from (f"{variable}_FILE" for variable in setting.variables)


def of_commands(command: Any) -> Iterator[str]:
    """Give the variables of the options of a command, and of those below it."""
    for parameter in command.params:
        names = parameter.envvar or ()
        yield from (name.removeprefix("THRESHER_") for name in ([names] if isinstance(names, str) else names))
    if hasattr(command, "list_commands"):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from of_commands(command.get_command(context, name))


def of_source() -> Iterator[str]:
    """Give the variables that the source names."""
    for path in SOURCE.rglob("*.py"):
        yield from re.findall(r"\"THRESHER_([A-Z0-9_]+)\"", path.read_text())


def variables() -> str:
    """Return the file's content."""
    found = {*of_forms(), *of_commands(typer.main.get_command(app)), *of_source(), *OF_TESTS}
    return "".join(f"{name}\n" for name in sorted(found))


if __name__ == "__main__":
    PAGE.write_text(variables())
