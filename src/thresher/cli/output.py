"""All that the command prints: results on standard output, everything else on standard error.

Text for people is escaped: nothing that a stranger wrote to a table, a topic or a page reaches a terminal as it is, or
begins a line.
"""

import contextlib
import json
import logging
import os
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from thresher.cli.layout.fitting import fitted
from thresher.core.errors import InvalidInput
from thresher.core.printable import indented, printable

# Tables, progress bars and the stack are imported where they are used: most commands start without them.
if TYPE_CHECKING:
    from rich.progress import Progress

    from thresher.devstack.jars import Progress as FetchProgress

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object for scripts.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]

out = Console(highlight=False, soft_wrap=True, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


_UNLIMITED = 100_000
# The most characters of a value that are shown to people.
_SHOWN = 1_000

_mask: Callable[[str], str] = str
_log: logging.Logger | None = None


def write_to_log(log: logging.Logger | None) -> None:
    """Write messages for people to this log from now on, so that every line is JSON; None: as plain text again."""
    global _log  # noqa: PLW0603 - one standard error, one way to write to it
    _log = log


def hide(mask: Callable[[str], str]) -> None:
    """Pass all text for standard error through `mask` from now on, tracebacks included."""
    global _mask  # noqa: PLW0603 - one standard error, one mask
    _mask = mask

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if _log is not None:
            _log.critical("unexpected, which is a bug: %s", error, exc_info=(kind, error, trace))
            return
        sys.stderr.write(indented(mask("".join(traceback.format_exception(kind, error, trace)))))

    def show_of_thread(ended: threading.ExceptHookArgs) -> None:
        if ended.exc_value is not None:
            show(ended.exc_type, ended.exc_value, ended.exc_traceback)

    sys.excepthook = show
    threading.excepthook = show_of_thread


def emit_json(content: object) -> None:
    """Print one JSON object on a line of its own, for scripts."""
    typer.echo(json.dumps(content))


def emit_text(text: str) -> None:
    """Print text of our own, such as DDL, as it is."""
    typer.echo(text)


def emit_line(text: str) -> None:
    """Print a line of a result that holds the text of others."""
    typer.echo(indented(text))


def result(text: str) -> None:
    """Print a result for people; after `write_to_log`, write it to the log."""
    if _log is not None:
        _log.info(text)
    else:
        out.print(indented(text), markup=False)


def note(text: str) -> None:
    """Tell people something that is not the result."""
    if _log is not None:
        _log.info(text)
    else:
        err.print(escape(indented(_mask(text))), soft_wrap=not err.is_terminal)


def complain(text: str) -> None:
    """Tell people why the command failed."""
    if _log is not None:
        _log.error("it ends: %s", text)
    else:
        err.print(f"[bold red]error:[/] {escape(indented(_mask(text)))}", soft_wrap=not err.is_terminal)


def require_terminal(what: str) -> None:
    """Raise if there is no terminal on which to ask."""
    if not sys.stdin.isatty():
        raise InvalidInput(f"{what} asks first, and there is no terminal to ask on: add --yes; nothing was changed")


def require_consent(question: str) -> None:
    """Ask on the terminal, and leave the command with exit code 1 unless the answer is yes."""
    # On standard error: Typer's own prompt writes a blank to standard output.
    err.print(escape(printable(f"{question} [y/N] ")), end="")
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        note("nothing was changed")
        raise typer.Exit(1)


def counted(count: int, one: str, many: str) -> str:
    """Return a number with what it counts: `1 row was dropped`, `2 rows were dropped`."""
    return f"{count:,} {one if count == 1 else many}"


def emit_field(name: str, value: object, *, width: int = 12) -> None:
    """Print a field of a row or message. A long value is cut, its further lines are indented, and None is nothing."""
    text = "" if value is None else str(value)
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}… ({len(text):,} characters: --json shows all)"
    # An indented line cannot pass for another field.
    emit_line(f"{name:{width}} {text}".replace("\n", "\n" + " " * (width + 1)))


def sentence(text: str) -> None:
    """Print a result for people, wrapped between words to the width of the terminal, if any."""
    width, text = _width(), indented(text)
    for line in [text] if width is None else textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False):
        typer.echo(line)


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    importance: Sequence[str] = (),
    shortened: Collection[str] = (),
    rest: str = "a wider terminal",
) -> None:
    """Print a table as a result, one line for each row. Columns that do not fit are left out, as `fitting` says.

    `rest` names what shows the columns that are left out. To a file or a pipe, all columns are printed.
    """
    from rich.table import Table  # noqa: PLC0415

    found = fitted(columns, rows, width=_width(), importance=importance, shortened=shortened)
    shown = Table(*found.columns)
    for row in found.rows:
        shown.add_row(*map(escape, row))
    out.print(f"[bold]{escape(printable(title))}[/]")
    # A separate console, because Rich shrinks a table to the width of its console.
    wide = Console(highlight=False, emoji=False)
    wide.width = max(wide.width, wide.measure(shown, options=wide.options.update(width=_UNLIMITED)).maximum)
    wide.print(shown, crop=False)
    if found.left_out:
        note(f"left out, because the terminal is too narrow: {', '.join(found.left_out)}; {rest} shows them")


def _width() -> int | None:
    """Return the width that lines have to fit; None if there is neither a terminal nor COLUMNS."""
    return out.width if out.is_terminal or os.environ.get("COLUMNS") else None


@contextlib.contextmanager
def fetching() -> "Iterator[FetchProgress]":
    """Show the progress of Kafka's download, if there is one."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn("fetching Kafka, once"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[jar]}"))
    with Progress(*columns, console=err, transient=True) as progress:
        task = None

        def show(jar: str, done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = progress.add_task("", total=total, jar=jar)
            progress.update(task, completed=done, jar=jar)

        yield show


@contextlib.contextmanager
def working(what: str, total: int | None) -> "Iterator[Progress]":
    """Show a progress bar with a rate. `total` may be None. The caller updates task 0 with `completed` and `rate`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]} rec/s"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=err) as progress:
        progress.add_task(what, total=total, rate="0")
        yield progress
