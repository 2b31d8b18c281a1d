"""A temporary directory that does not outlive its owner for long, whatever ends the owner.

The owner holds a lock on it, which the kernel lets go of when the owner dies; whoever makes the next one of the same
kind removes those that nobody holds.
"""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

# A directory this young may belong to somebody who has not locked it yet.
_STALE_SECONDS = 60.0


class Throwaway:
    """A directory of our own, made now and removed by `remove`, or by the next owner of the same kind after a crash."""

    def __init__(self, prefix: str) -> None:
        sweep(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock: int | None = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove the directory with all that is in it. Harmless the second time."""
        lock, self._lock = self._lock, None
        shutil.rmtree(self.path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep(prefix: str) -> None:
    """Remove the directories of this kind whose owner is gone."""
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            status = directory.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _STALE_SECONDS:
                continue
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # its owner was quicker, or it is not one of ours
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(descriptor)
