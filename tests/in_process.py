"""Runs `thresher` within the test process, for tests that do not depend on signals, pipes or imports."""

import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from unittest.mock import patch

from tests.processes import environment
from thresher.cli import output
from thresher.cli.app import main


def thresher(arguments: Sequence[str | bytes], given: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    """Run the command in this thread; return its exit code and output."""
    words = [os.fsdecode(each) for each in arguments]
    out, err = io.BytesIO(), io.BytesIO()
    root, ours = logging.getLogger(), logging.getLogger("thresher")
    level, our_level = root.level, ours.level
    with (
        patch.object(sys, "argv", ["thresher", *words]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(given))),
        patch.object(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8", write_through=True)),
        patch.object(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8", write_through=True)),
        patch.dict(os.environ, environment()),
        # The consoles have read the environment already.
        patch.object(output.out, "_width", 200),
        patch.object(output.err, "_width", 200),
        # State that the command sets for its whole process.
        patch.object(sys, "excepthook", sys.excepthook),
        patch.object(threading, "excepthook", threading.excepthook),
        patch.object(output, "_mask", output._mask),
        patch.object(root, "handlers", []),
    ):
        try:
            main()
            code: int | str | None = 0
        except SystemExit as end:
            code = end.code
        finally:
            root.setLevel(level)
            ours.setLevel(our_level)
        return subprocess.CompletedProcess(words, int(code or 0), out.getvalue(), err.getvalue())
