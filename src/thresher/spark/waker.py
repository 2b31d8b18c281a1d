"""Wakes a thread that waits in `poll`: a pipe to oneself, safe to write to from any thread and any signal handler."""

import contextlib
import os
import weakref


class Waker:
    """A pipe that lives as long as the object: a signal may come at any time, also after everything was closed."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for descriptor in (self._reader, self._writer):
            weakref.finalize(self, os.close, descriptor)

    def fileno(self) -> int:
        """What to wait for."""
        return self._reader

    def wake(self) -> None:
        """Wake whoever waits. Never blocks, never raises."""
        with contextlib.suppress(BlockingIOError):  # it is full, so whoever waits is awake
            os.write(self._writer, b"!")

    def drain(self) -> None:
        """Have been woken. Harmless when nobody did."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
