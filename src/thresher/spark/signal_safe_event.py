"""A signal-safe event: set once, from any thread or from a signal handler, to request a stop, a kill or an abort.

`threading.Event` is not safe here: a signal handler that sets it while its own thread waits on it can deadlock.
"""

import math
import os
import select

from thresher.spark.wakeup_pipe import WakeupPipe


class SignalSafeEvent:
    """Like `threading.Event`, with a reason in `why`. Once set, it stays set, with the first reason."""

    def __init__(self) -> None:
        self._is_set = False
        self.why = ""
        self._wakeup = WakeupPipe()
        self._owner = os.getpid()

    def set(self, why: str) -> None:
        """Set the event. Never blocks, never raises."""
        # A forked child shares the pipe, and must not wake its parent.
        if not self._is_set and os.getpid() == self._owner:
            self.why = why
            self._is_set = True
            self._wakeup.wake()

    def is_set(self) -> bool:
        """Whether the event is set."""
        return self._is_set

    def wait(self, seconds: float) -> bool:
        """Wait until the event is set, at most `seconds`; return whether it is set."""
        if not self._is_set and seconds > 0:
            poll = select.poll()  # one for each waiting thread, because a poll object cannot be shared
            poll.register(self._wakeup, select.POLLIN)
            # Rounded up to whole milliseconds: rounding down would make a short wait a busy loop.
            poll.poll(math.ceil(seconds * 1000))
        return self._is_set
