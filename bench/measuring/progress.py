"""Shows on a terminal which measurement is running, and for how long; elsewhere nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.measuring.report import console


@contextmanager
def measuring(number: int) -> Iterator[Callable[[str], None]]:
    """Show a bar for this number of measurements. Call the yielded function with a measurement's name as it begins."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", total=number)
        begun = 0

        def begins(name: str) -> None:
            nonlocal begun
            bar.update(task, description=name, completed=begun)
            begun += 1

        yield begins
