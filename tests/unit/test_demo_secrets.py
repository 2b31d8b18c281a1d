"""What other users of the machine may read of the demo: its command lines, and no secret in them."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thresher.cli.demo import relay

DSN = "host=127.0.0.1 port=1 user=postgres password=hunter2 dbname=demo"


class Started(Exception):
    """A program would have been started."""


def test_the_demos_command_lines_hold_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: list[tuple[list[str], dict[str, str]]] = []

    def start(command: list[str], **options: Any) -> None:
        starts.append((command, options.get("env") or {}))
        raise Started

    # The user's own database, which the demo must not use.
    monkeypatch.setenv("thresher_data_source", "host=production")
    monkeypatch.setenv("THRESHER_DS_FILE", "/run/secrets/production")
    monkeypatch.setattr("thresher.cli.demo.process.subprocess.Popen", start)
    monkeypatch.setattr(relay, "_following", lambda *_: contextlib.nullcontext())
    stack: Any = SimpleNamespace(kafka=SimpleNamespace(bootstrap="127.0.0.1:1"))
    with pytest.raises(Started):
        relay._play(stack, DSN, 10, tmp_path, tmp_path / "report.html")
    ((command, environment),) = starts
    assert not [word for word in command if "hunter2" in word]
    assert environment["THRESHER_DS"] == DSN
    assert not [name for name in environment if name.upper() in {"THRESHER_DATA_SOURCE", "THRESHER_DS_FILE"}]
