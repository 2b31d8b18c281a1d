"""A pipe that wakes a thread which waits in `poll`. Any thread and any signal handler may write to it."""

import contextlib
import os
import weakref


class WakeupPipe:
    """Open as long as the object lives: a signal may arrive even after everything else was closed."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for descriptor in (self._reader, self._writer):
            weakref.finalize(self, os.close, descriptor)

    def fileno(self) -> int:
        """Return the descriptor to poll for reading."""
        return self._reader

    def wake(self) -> None:
        """Wake the waiting thread. Never blocks, never raises."""
        with contextlib.suppress(BlockingIOError):  # a full pipe has woken the thread already
            os.write(self._writer, b"!")

    def drain(self) -> None:
        """Empty the pipe after a wake-up. Harmless when it is empty."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
