"""Lists the processes of this machine that have status pages, so that 'thresher status' finds them: a file for each.

1. A process writes its file under another name, locks it, and renames it. So a listed file is locked from the start.
2. The lock ends with the process, even after a kill, because child processes do not inherit the descriptor. A file
   without a lock belongs to a process that is gone: the next reader removes it.
3. If files cannot be written, the process is not listed, and goes on: '--at' still reaches it.
"""

import contextlib
import fcntl
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from thresher.core.directories import PlaceUnusable, make_writable, state_home

logger = logging.getLogger("thresher")
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1", "[::]": "[::1]"}  # noqa: S104 - not listened on


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process with status pages at HOST:PORT; `config` is the file that it was started with, if any."""

    kind: str
    name: str
    at: str
    pid: int
    config: str | None = None


@contextlib.contextmanager
def listed(*, kind: str, name: str, host: str, port: int, config: Path | None) -> Iterator[None]:
    """List this process while its pages are served."""
    entry = Running(
        kind=kind,
        name=name,
        at=f"{_EVERYWHERE.get(host, host)}:{port}",
        pid=os.getpid(),
        config=None if config is None else str(config.resolve()),
    )
    try:
        path, descriptor = _written(entry)
    except (OSError, PlaceUnusable) as error:
        logger.debug("'thresher status' will not list this process: %s", error)
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def running() -> list[Running]:
    """Return the listed processes that are alive, sorted by kind and name."""
    found = []
    try:
        paths = list(_place().glob("*.json"))
    except (OSError, PlaceUnusable):
        return []
    for path in paths:
        # Another user's file, or a file that was removed meanwhile: not listed.
        with contextlib.suppress(OSError, ValueError, TypeError):
            if _is_locked(path):
                found.append(Running(**json.loads(path.read_text(encoding="utf-8"))))
            else:
                path.unlink()
    return sorted(found, key=lambda each: (each.kind, each.name, each.pid))


def _place() -> Path:
    return state_home() / "running"


def _written(entry: Running) -> tuple[Path, int]:
    path = make_writable(_place(), "THRESHER_STATE") / f"{entry.pid}-{entry.at.rpartition(':')[2]}.json"
    draft = path.with_suffix(".new")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(asdict(entry)).encode())
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.rename(path)
    except BaseException:
        os.close(descriptor)
        raise
    return path, descriptor


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
