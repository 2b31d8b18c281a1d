"""A copy of the checkout in which mutants are applied and their tests run, one after another.

The copy has a stack of its own for tests that need servers. It starts with the first such test, and is empty for each.
"""

import compileall
import contextlib
import enum
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mutants.mutant import Mutant
from tests.servers import kafka_options
from thresher.devstack import shared
from thresher.devstack.stack import Stack

_COPIED = ("src", "tests", "examples", "docs", "pyproject.toml", "README.md")
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


class CheckoutCopy:
    """A copy of the checkout at `root`. A context manager: leaving stops the servers and removes the copy."""

    def __init__(self, root: Path) -> None:
        self._ended = contextlib.ExitStack()
        self._scratch = Path(self._ended.enter_context(tempfile.TemporaryDirectory(prefix="thresher-mutants-")))
        # The database's account may enter.
        self._scratch.chmod(0o711)
        self._copy, self._stack = self._scratch / "checkout", self._scratch / "stack"
        self._copy.mkdir()
        for part in _COPIED:
            source = root / part
            if source.is_dir():
                shutil.copytree(source, self._copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self._copy / part)
        # Each test starts interpreters, which would otherwise compile the whole package again.
        compileall.compile_dir(self._copy, quiet=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.close()

    def run(self, mutant: Mutant) -> Result:
        """Apply the mutant, run its test, and undo the change."""
        shares = mutant.served and not mutant.own_servers
        if shares and not self._stack.exists():
            shared.describe(self._ended.enter_context(Stack(kafka=kafka_options())), self._stack)
        file = self._copy / mutant.file
        sound, written = file.read_text(encoding="utf-8"), file.stat().st_mtime_ns
        file.write_text(mutant.mutated(sound), encoding="utf-8")
        began = time.monotonic()
        try:
            outcome, output = self._test(mutant.test, self._stack if shares else None)
        finally:
            file.write_text(sound, encoding="utf-8")
            # With its old time, the sound file fits its compiled module again.
            os.utime(file, ns=(written, written))
        return Result(mutant=mutant, outcome=outcome, seconds=time.monotonic() - began, output=output)

    def _test(self, test: str, stack: Path | None) -> tuple[Outcome, str]:
        report = self._scratch / "report.xml"
        report.unlink(missing_ok=True)
        # The copy's package comes before the installed one, in the test process and in programs that it starts.
        # Compiled modules are not written, so that none holds a mutant.
        environment = {**os.environ, "PYTHONPATH": str(self._copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        if stack is not None:
            environment[shared.DESCRIPTION] = str(stack)
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly"]
        try:
            ended = subprocess.run(
                [*command, f"--junitxml={report}", test],
                cwd=self._copy,
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
