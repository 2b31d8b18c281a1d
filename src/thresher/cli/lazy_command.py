"""A command that is listed with its help, and made when it is called.

The other commands work without the packages that it imports.
"""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

from thresher.cli.layout.help_page import Commands


def add_lazy_command(app: typer.Typer, name: str, help_: str | None, make: Callable[[], typer.Typer]) -> None:
    """Add the command, or the group of commands, that the application returned by `make` is."""

    class LazyCommand(TyperCommand):
        """Stands for the command in the list of commands."""

        def made(self) -> Any:
            """Return the command itself."""
            return typer.main.get_command(make())

        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            return self.made().make_context(info_name, args, parent, **extra)

    @app.command(name, cls=LazyCommand, help=help_)
    def _() -> None:
        raise AssertionError("the context is that of the command")


def only_command(name: str, function: Callable[..., None]) -> typer.Typer:
    """Return an application that is one command."""
    app = Commands()
    app.command(name)(function)
    return app
