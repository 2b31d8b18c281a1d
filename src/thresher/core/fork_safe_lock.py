"""A lock that is free in a forked child, whichever thread of the parent held it at the fork.

Only the forking thread lives on in the child. A plain lock that another thread held would stay locked there for ever.
What the lock guards must be usable, or recognized as the parent's, at any moment of a block that holds it.
"""

import os
import threading
import weakref
from types import TracebackType


class ForkSafeLock:
    """A lock for `with`. Not for blocks that fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Be free again, in a child."""
        self._lock = threading.Lock()


_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in tuple(_locks):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
