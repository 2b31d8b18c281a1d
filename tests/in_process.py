"""Runs `thresher` within the test process, for tests that do not depend on signals, pipes or imports."""

import contextlib
import importlib
import io
import logging
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO
from unittest.mock import patch

from tests.processes import environment
from thresher.cli import output
from thresher.cli.app import main


def thresher(
    arguments: Sequence[str | bytes],
    given: bytes = b"",
    *,
    columns: int = 200,
    cwd: Path | None = None,
    terminal: bool = False,
    without: Sequence[str] = (),
    **variables: str,
) -> "subprocess.CompletedProcess[bytes]":
    """Run the command in this thread; return its exit code and output.

    `given` is its standard input, on a terminal if `terminal` is set. `without` names variables of the
    environment that the command does not see, `variables` further ones.
    """
    words = [os.fsdecode(each) for each in arguments]
    out, err = io.BytesIO(), io.BytesIO()
    root, ours = logging.getLogger(), logging.getLogger("thresher")
    level, our_level = root.level, ours.level
    with (
        contextlib.chdir(cwd or Path.cwd()),
        _imports_of(cwd),
        patch.object(sys, "argv", ["thresher", *words]),
        _input(given, terminal=terminal) as stdin,
        patch.object(sys, "stdin", stdin),
        patch.object(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8", write_through=True)),
        patch.object(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8", write_through=True)),
        patch.dict(os.environ, environment(COLUMNS=str(columns), **variables)),
        # The consoles have read the environment already.
        patch.object(output.out, "_width", columns),
        patch.object(output.err, "_width", columns),
        # State that the command sets for its whole process.
        patch.object(sys, "excepthook", sys.excepthook),
        patch.object(threading, "excepthook", threading.excepthook),
        patch.object(output, "_mask", output._mask),
        patch.object(output, "_log", output._log),
        patch.object(root, "handlers", []),
    ):
        for name in without:
            os.environ.pop(name, None)
        try:
            main()
            code: int | str | None = 0
        except SystemExit as end:
            code = end.code
        finally:
            root.setLevel(level)
            ours.setLevel(our_level)
        return subprocess.CompletedProcess(words, int(code or 0), out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _input(given: bytes, *, terminal: bool) -> Iterator[TextIO]:
    if not terminal:
        yield io.TextIOWrapper(io.BytesIO(given))
        return
    ours, theirs = pty.openpty()
    try:
        os.write(ours, given)
        with open(theirs) as file:  # noqa: PTH123 - a descriptor
            yield file
    finally:
        os.close(ours)


@contextlib.contextmanager
def _imports_of(directory: Path | None) -> Iterator[None]:
    """Forget the modules that the command imports from its directory, and its changes of the import path."""
    path, modules = [*sys.path], set(sys.modules)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if directory is not None and file is not None and Path(file).is_relative_to(directory):
                del sys.modules[name]


def thresher_text(*arguments: str, given: bytes = b"", **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the command in this thread, as `thresher` does; return its output as text."""
    done = thresher(arguments, given, **options)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
