"""Registers servers that run already as a stack that `--stack` finds."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def named_stack(state: Path, name: str, *, dsn: str, bootstrap: str) -> Iterator[None]:
    """Register a running stack of that name, for commands whose THRESHER_STATE is `state`."""
    directory = state / "stacks" / name
    directory.mkdir(parents=True)
    (directory / "spec.json").write_text("{}")
    (directory / "endpoints.json").write_text(json.dumps({"dsn": dsn, "bootstrap": bootstrap, "processes": {}}))
    with directory.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
