"""A temporary directory that is removed even if its owner is killed.

The owner holds a lock on the directory, which the kernel releases when the owner dies. The next process that makes a
directory with the same prefix removes the unlocked ones.
"""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

# A younger directory may belong to a process that has not locked it yet.
_STALE_SECONDS = 60.0
_SHORT = Path("/tmp")  # noqa: S108 - only for a directory with a random name, which others cannot enter
# The letters that `mkdtemp` appends to a prefix.
_RANDOM_LETTERS = 8


class Throwaway:
    """A directory of this process, closed to other users. `remove` removes it; after a crash, the next owner does.

    Its path has at most `longest` letters: below a longer temporary directory than that allows, it is in /tmp.
    """

    def __init__(self, prefix: str, *, longest: int | None = None) -> None:
        within = Path(tempfile.gettempdir())
        if longest is not None and len(str(within / prefix)) + _RANDOM_LETTERS > longest:
            within = _SHORT
        sweep(prefix, within)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=within))
        self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the directory and its content. Harmless when repeated."""
        lock, self._lock = self._lock, None
        shutil.rmtree(self.path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep(prefix: str, within: Path | None = None) -> None:
    """Remove the directories with this prefix whose owner is gone."""
    for directory in (within or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        try:
            status = directory.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _STALE_SECONDS:
                continue
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # its owner removed it, or it is not one of ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(descriptor)
