"""The cache of files that are downloaded or copied once: filled in a temporary directory, then renamed under a lock.

A directory in the cache is complete or absent. A crash, a full disk or a lost network leaves only a temporary
directory (stage), which the next process that takes the lock removes. A directory that another user may write to is
not used.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from thresher.core.directories import PlaceUnusable, make_writable
from thresher.core.trusted_path import why_untrusted


@contextlib.contextmanager
def staged(target: Path) -> Iterator[tuple[Path, Path | None]]:
    """Give the target and, if it is missing, a stage to fill. Leaving without an error renames the stage.

    Raises `PlaceUnusable` if another user may write to the target or to a directory above it.
    """
    if target.is_dir():
        _require_trusted(target)
        yield target, None
        return
    _require_trusted(make_writable(target.parent, "THRESHER_CACHE"))
    with locked(target.with_name(f"{target.name}.lock")):
        if target.is_dir():
            _require_trusted(target)
            yield target, None
            return
        for left in target.parent.glob(f"{target.name}.stage*"):
            shutil.rmtree(left, ignore_errors=True)
        stage = target.with_name(f"{target.name}.stage-{os.getpid()}")
        try:
            stage.mkdir(mode=0o755)
            yield target, stage
            stage.rename(target)
        finally:
            shutil.rmtree(stage, ignore_errors=True)


def _require_trusted(place: Path) -> None:
    if why := why_untrusted(place):
        raise PlaceUnusable(
            f"{place} is not used, because programs in it could be another user's: {why}. Set THRESHER_CACHE to a "
            "directory that only you may write to."
        )


def write_whole(path: Path, text: str) -> None:
    """Write a file that only this user can read, atomically: others find it complete or not at all."""
    draft = path.with_name(f"{path.name}.draft")
    draft.touch(mode=0o600)
    draft.write_text(text, encoding="utf-8")
    draft.rename(path)


def open_lock(path: Path) -> int:
    """Open a lock file, and make it if it is missing. No other user may open it, because that is enough to lock it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.fstat(descriptor).st_uid == os.geteuid():
        # Earlier versions left it open to others.
        os.fchmod(descriptor, 0o600)
    return descriptor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock among processes. The kernel releases it when our process ends."""
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
