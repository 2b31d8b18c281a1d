"""A command that is listed with its help, and built only when it is called.

The other commands work without the packages that it imports.
"""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from thresher.cli.layout.help_page import Commands


def add_lazy_command(app: typer.Typer, name: str, help_: str | None, make: Callable[[], typer.Typer]) -> None:
    """Add a command, or a group of commands. `make` builds its application when it is called."""

    class LazyCommand(TyperCommand):
        """The placeholder in the list of commands."""

        def made(self) -> Any:
            """Build the command."""
            return typer.main.get_command(make())

        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            return self.made().make_context(info_name, args, parent, **extra)

    @app.command(name, cls=LazyCommand, help=help_)
    def _() -> None:
        raise AssertionError("the context is that of the command")


def only_command(name: str, function: Callable[..., None]) -> typer.Typer:
    """Return an application that consists of one command."""
    app = Commands()
    app.command(name)(function)
    return app
