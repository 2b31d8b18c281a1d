"""Breaks the code on purpose: each mutant must make the test that it names fail (see `mutant`).

1. Every old text must match once and every test must exist, or nothing is run; `--check` ends here.
2. The checkout is copied once. Each mutant is applied to the copy, its test is run, and the change is undone.
3. Mutants are run by test file. Tests that need servers share one stack, which is empty for each.
4. A test that fails has caught its mutant. A test that passes lets it survive. A run that ends in another way (an
   import, a fixture) is a mistake in the mutant. Survivors and mistakes fail the run.
"""

import argparse
import contextlib
import enum
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from mutants.mutant import Misplaced, Mutant, load, misplaced
from tests.servers import kafka_options
from thresher.devstack import shared
from thresher.devstack.stack import Stack

ROOT = Path(__file__).parents[1]
_COPIED = ("src", "tests", "examples", "docs", "pyproject.toml", "README.md")
# Tests in other folders start no servers.
_SERVED = ("tests/integration/", "tests/crash/", "tests/contract/", "tests/acceptance/")
_LONGEST_SECONDS = 900.0


class Outcome(enum.StrEnum):
    """The outcome of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    MISTAKE = "MISTAKE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A mutant, its outcome, and the output of its test where that matters."""

    mutant: Mutant
    outcome: Outcome
    seconds: float
    output: str = ""


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
    results = list(_run(chosen, console))
    _show(results, console)
    return 0 if all(result.outcome is Outcome.CAUGHT for result in results) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run mutants", description="Break the code; each break turns a test red.")
    parser.add_argument("names", nargs="*", help="mutants or groups; all if none is named")
    parser.add_argument("--check", action="store_true", help="only check that old texts and tests exist")
    parser.add_argument("--changed", action="store_true", help="only mutants of files that differ from --base")
    parser.add_argument("--base", default="HEAD~", help="the commit that --changed compares with (%(default)s)")
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
    return sorted(chosen, key=lambda mutant: (_served(mutant), mutant.test_file))


def _served(mutant: Mutant) -> bool:
    return mutant.test.startswith(_SERVED)


def _run(mutants: Sequence[Mutant], console: Console) -> Iterator[Result]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="thresher-mutants-") as scratch,
        contextlib.ExitStack() as servers,
        Progress(*columns, console=console) as progress,
    ):
        copy, description = Path(scratch) / "checkout", Path(scratch) / "stack"
        _copy(copy)
        # The database's account may enter.
        Path(scratch).chmod(0o711)
        bar = progress.add_task("", total=len(mutants))
        for mutant in mutants:
            shares = _served(mutant) and not mutant.own_servers
            if shares and not description.exists():
                progress.update(bar, description="starting servers")
                shared.describe(servers.enter_context(Stack(kafka=kafka_options())), description)
            progress.update(bar, description=mutant.name)
            result = _try(mutant, copy, description if shares else None)
            progress.advance(bar)
            told = f"{result.outcome:8} {result.seconds:5.1f} s  {mutant.name}: {mutant.test}"
            console.print(told, markup=False, highlight=False)
            if result.outcome is not Outcome.CAUGHT:
                console.print(result.output[-1500:], markup=False, highlight=False)
            yield result


def _copy(target: Path) -> None:
    target.mkdir()
    for part in _COPIED:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / part)


def _try(mutant: Mutant, copy: Path, stack: Path | None) -> Result:
    """Apply the mutant to the copy, run its test, and undo the change."""
    file = copy / mutant.file
    sound = file.read_text(encoding="utf-8")
    file.write_text(mutant.mutated(sound), encoding="utf-8")
    began = time.monotonic()
    try:
        outcome, output = _test(mutant.test, copy, stack)
    finally:
        file.write_text(sound, encoding="utf-8")
    return Result(mutant=mutant, outcome=outcome, seconds=time.monotonic() - began, output=output)


def _test(test: str, copy: Path, stack: Path | None) -> tuple[Outcome, str]:
    report = copy.parent / "report.xml"
    report.unlink(missing_ok=True)
    # The copy's package comes before the installed one, in the test process and in programs that it starts.
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    if stack is not None:
        environment[shared.DESCRIPTION] = str(stack)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly"]
    try:
        ended = subprocess.run(
            [*command, f"--junitxml={report}", test],
            cwd=copy,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=_LONGEST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return Outcome.MISTAKE, f"the test did not end in {_LONGEST_SECONDS:g} s"
    if ended.returncode == 0:
        return Outcome.SURVIVED, ended.stdout
    # Exit code 1 means that a test or a fixture failed: only a failed test has caught the mutant.
    caught = ended.returncode == 1 and _failures(report) > 0
    return Outcome.CAUGHT if caught else Outcome.MISTAKE, ended.stdout


def _failures(report: Path) -> int:
    try:
        suites = ET.parse(report).getroot().iter("testsuite")  # noqa: S314 - pytest wrote it
        return sum(int(suite.get("failures", "0")) for suite in suites)
    except (OSError, ET.ParseError):
        return 0


def _show(results: Sequence[Result], console: Console) -> None:
    table = Table("mutant", "test", "outcome", "seconds", box=None)
    for result in results:
        style = "" if result.outcome is Outcome.CAUGHT else "bold red"
        seconds = f"{result.seconds:.1f}"
        table.add_row(result.mutant.name, result.mutant.test, str(result.outcome), seconds, style=style)
    console.print(table)
    counts = Counter(result.outcome for result in results)
    minutes = sum(result.seconds for result in results) / 60
    console.print(f"{counts[Outcome.CAUGHT]} of {len(results)} mutants were caught, in {minutes:.1f} minutes")


if __name__ == "__main__":
    sys.exit(main())
