"""A pipeline as a program: `python -m <module> '<settings as JSON>'`, with hooks for its workers."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tests.processes import PYTHON_PATH, ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A module to run, with its settings; `hook` among them is the function that its workers call at crash points."""

    module: str
    settings: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)

    def changed(self, *, variables: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """Return the same program with other settings, and with further variables in its environment."""
        return replace(self, settings={**self.settings, **settings}, variables={**self.variables, **(variables or {})})

    def start(self, log: Path) -> "subprocess.Popen[bytes]":
        """Start the program; its output is appended to the log."""
        with log.open("ab") as opened:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, json.dumps(self.settings)],
                cwd=ROOT,
                # If the client library crashes, the threads' stacks are written to the log.
                env={**os.environ, "PYTHONPATH": PYTHON_PATH, "PYTHONFAULTHANDLER": "1", **self.variables},
                stdout=opened,
                stderr=opened,
            )
