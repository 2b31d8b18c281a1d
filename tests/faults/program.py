"""A pipeline as a program of its own: `python -m <module> '<settings as JSON>'`, with hooks for its workers."""

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
    """What is run. The settings are the module's own; `hook` among them is where its workers report crash points."""

    module: str
    settings: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=dict)

    def changed(self, *, variables: Mapping[str, str] | None = None, **settings: Any) -> Self:
        """Return the same program with other settings, and with further variables in its environment."""
        return replace(self, settings={**self.settings, **settings}, variables={**self.variables, **(variables or {})})

    def start(self, log: Path) -> "subprocess.Popen[bytes]":
        """Start it; what it says is added to the log."""
        with log.open("ab") as opened:
            return subprocess.Popen(
                [sys.executable, "-m", self.module, json.dumps(self.settings)],
                cwd=ROOT,
                # A crash of a client leaves the stacks of its threads.
                env={**os.environ, "PYTHONPATH": PYTHON_PATH, "PYTHONFAULTHANDLER": "1", **self.variables},
                stdout=opened,
                stderr=opened,
            )
