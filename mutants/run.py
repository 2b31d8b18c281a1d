"""Breaks the code on purpose: each mutant must make the test that it names fail (see `mutant`).

1. Every old text must match once and every test must exist, or nothing is run; `--check` ends here.
2. Two mutants, or `--processes N`, run at a time. Each runs in a copy of the checkout of its own, which has a stack for
   tests that need servers (see `checkout_copy`).
3. A test that fails has caught its mutant. A test that passes lets it survive. A run that ends in another way (an
   import, a fixture) is a mistake in the mutant. Survivors and mistakes fail the run.
"""

import argparse
import contextlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mutants.checkout_copy import CheckoutCopy, Outcome, Result
from mutants.mutant import Misplaced, Mutant, load, misplaced

ROOT = Path(__file__).parents[1]


def main() -> int:
    options = _options()
    # A file or a pipe has no width: there, lines of the table are not cut.
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 240)
    try:
        mutants = load(Path(__file__).parent)
    except Misplaced as error:
        console.print(str(error), markup=False)
        return 1
    if problems := misplaced(mutants, ROOT):
        for problem in problems:
            console.print(problem, markup=False)
        return 1
    if options.check:
        groups = Counter(mutant.group for mutant in mutants)
        console.print(f"{len(mutants)} mutants fit: " + ", ".join(f"{group} {n}" for group, n in groups.items()))
        return 0
    chosen = _chosen(mutants, options)
    if not chosen:
        console.print("no mutant was chosen")
        return 0 if options.changed else 1
    results = list(_run(chosen, options.processes, console))
    _show(results, console)
    return 0 if all(result.outcome is Outcome.CAUGHT for result in results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run mutants", description="Break the code; each break turns a test red.")
    parser.add_argument("names", nargs="*", help="mutants or groups; all if none is named")
    parser.add_argument("--check", action="store_true", help="only check that old texts and tests exist")
    parser.add_argument("--changed", action="store_true", help="only mutants of files that differ from --base")
    parser.add_argument("--base", default="HEAD~", help="the commit that --changed compares with (%(default)s)")
    parser.add_argument("-n", "--processes", type=int, default=2, help="tests that run at a time (%(default)s)")
    return parser.parse_args()


def _chosen(mutants: Sequence[Mutant], options: argparse.Namespace) -> list[Mutant]:
    """Return the mutants to run, by test file: those without servers first, so that a mistake shows early."""
    known = {mutant.name for mutant in mutants} | {mutant.group for mutant in mutants}
    if unknown := sorted(set(options.names) - known):
        raise SystemExit(f"no mutant and no group: {', '.join(unknown)}")
    chosen = [mutant for mutant in mutants if not options.names or {mutant.name, mutant.group} & set(options.names)]
    if options.changed:
        command = ["git", "diff", "--name-only", options.base]
        changed = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n"))
        chosen = [mutant for mutant in chosen if mutant.file in changed or mutant.test_file in changed]
    return sorted(chosen, key=lambda mutant: (mutant.served, mutant.test_file))


def _run(mutants: Sequence[Mutant], processes: int, console: Console) -> Iterator[Result]:
    """Run all mutants, and yield their results as they come. After an error, no other mutant is started."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    copies: SimpleQueue[CheckoutCopy] = SimpleQueue()

    def run(mutant: Mutant) -> Result:
        copy = copies.get()
        try:
            return copy.run(mutant)
        finally:
            copies.put(copy)

    with (
        contextlib.ExitStack() as ended,
        Progress(*columns, console=console) as progress,
        ThreadPoolExecutor(processes) as pool,
    ):
        bar = progress.add_task("copying the checkout", total=len(mutants))
        for _ in range(processes):
            copies.put(ended.enter_context(CheckoutCopy(ROOT)))
        try:
            for future in as_completed([pool.submit(run, mutant) for mutant in mutants]):
                result = future.result()
                progress.update(bar, advance=1, description=result.mutant.name)
                _tell(result, console)
                yield result
        finally:
            pool.shutdown(cancel_futures=True)


def _tell(result: Result, console: Console) -> None:
    told = f"{result.outcome:8} {result.seconds:5.1f} s  {result.mutant.name}: {result.mutant.test}"
    console.print(told, markup=False, highlight=False)
    if result.outcome is not Outcome.CAUGHT:
        console.print(result.output[-1500:], markup=False, highlight=False)


def _show(results: Sequence[Result], console: Console) -> None:
    table = Table("mutant", "test", "outcome", "seconds", box=None)
    for result in results:
        style = "" if result.outcome is Outcome.CAUGHT else "bold red"
        seconds = f"{result.seconds:.1f}"
        table.add_row(result.mutant.name, result.mutant.test, str(result.outcome), seconds, style=style)
    console.print(table)
    counts = Counter(result.outcome for result in results)
    console.print(f"{counts[Outcome.CAUGHT]} of {len(results)} mutants were caught")


if __name__ == "__main__":
    sys.exit(main())
