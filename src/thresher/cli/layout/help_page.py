"""The help page of a command, laid out for the width of the terminal. Lines are broken only between words.

The names of an option are on the left, its text is on the right. If the names are too wide, the text begins on the next
line, so that the names of flags and environment variables stay whole at 80 columns.
"""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

# The widest names that share a line with their text.
_NAMES_WIDTH = 28
_BETWEEN = 2
# A panel's two borders and the blanks beside them.
_FRAME = 4
F = TypeVar("F", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command with this help page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - the panels are printed, with colours
        """Print the help."""
        _print_page(self, ctx, [])


class Group(TyperGroup):
    """A group of commands with this help page."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as above
        """Print the help."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        _print_page(
            self,
            ctx,
            [(name, _paragraphs(each.help or "")[0]) for name, each in found if each is not None and not each.hidden],
        )


class Commands(typer.Typer):
    """An application whose commands have this help page."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": Group, "add_completion": False, "pretty_exceptions_enable": False, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Register a command."""
        return super().command(name, **{"cls": Command, **settings})


def entry_lines(entries: Sequence[tuple[str, str]], width: int, names_width: int = _NAMES_WIDTH) -> list[str]:
    """Return names and their texts in two columns, as lines that are no wider than `width`.

    A single word that is wider is not broken: its line is too wide.
    """
    left = min(names_width, max((len(names) for names, _ in entries), default=0))
    column = width - left - _BETWEEN
    lines: list[str] = []
    for names, text in entries:
        broken = _broken(text, column) or [""]
        if len(names) > left:
            lines += _broken(names, width)
        else:
            lines.append(f"{names:{left}}{' ' * _BETWEEN}{broken.pop(0)}".rstrip())
        lines += [f"{' ' * (left + _BETWEEN)}{line}" for line in broken]
    return lines


def _print_page(command: Any, ctx: Any, commands: Sequence[tuple[str, str]]) -> None:
    console = Console(highlight=False, soft_wrap=True, emoji=False)
    width = console.width
    paragraphs = _paragraphs(command.help) if command.help else []
    lines = [command.get_usage(ctx), *(line for text in paragraphs for line in ("", text))]
    console.print()
    for line in lines:
        for part in _broken(line, width - 2) or [""]:
            console.print(f" {part}".rstrip(), markup=False)
    console.print()
    arguments, options = (_records(command, ctx, kind) for kind in ("argument", "option"))
    longest = max((len(name) for name, _ in commands), default=0)
    for title, entries, names_width in (
        ("Arguments", arguments, _NAMES_WIDTH),
        ("Options", options, _NAMES_WIDTH),
        ("Commands", commands, longest),
    ):
        if entries:
            text = Text("\n".join(entry_lines(entries, width - _FRAME, names_width)), no_wrap=True, overflow="ignore")
            text.highlight_regex(r"(?m)(?<![\w-])--?[a-z][\w-]*", "bold cyan")
            text.highlight_regex(r"\[(env var|default|required)[^]]*\]", "dim")
            console.print(Panel(text, title=title, title_align="left", border_style="dim", width=width))
    console.print()


def _records(command: Any, ctx: Any, kind: str) -> list[tuple[str, str]]:
    """Return the names and the text of each argument, or of each option."""
    found: Iterable[Any] = (each for each in command.get_params(ctx) if each.param_type_name == kind)
    records = (each.get_help_record(ctx) for each in found)
    # Typer escapes the brackets around variables and defaults for markup.
    return [(names, " ".join(text.replace("\\[", "[").split())) for names, text in filter(None, records)]


def _paragraphs(text: str) -> list[str]:
    return [" ".join(paragraph.split()) for paragraph in text.split("\f", maxsplit=1)[0].split("\n\n")]


def _broken(text: str, width: int) -> list[str]:
    # Treat the label as one word: the name behind it may need its own line.
    held = text.replace("env var:", "env\N{NO-BREAK SPACE}var:")
    lines = textwrap.wrap(held, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]
