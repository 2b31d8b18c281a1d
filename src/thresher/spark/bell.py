"""A signal-safe event: set once, from any thread or from a signal handler, to request a stop, a kill or an abort.

`threading.Event` is not safe here: a signal handler that sets it while its own thread waits on it can deadlock.
"""

import math
import os
import select

from thresher.spark.wakeup_pipe import WakeupPipe


class Bell:
    """Like `threading.Event`, with a reason: `ring` sets it, `rung` tells whether it is set. The first reason stays."""

    def __init__(self) -> None:
        self.rung = False
        self.why = ""
        self._wakeup = WakeupPipe()
        self._owner = os.getpid()

    def ring(self, why: str) -> None:
        """Set the event. Never blocks, never raises."""
        # A forked child shares the pipe, and must not wake its parent.
        if not self.rung and os.getpid() == self._owner:
            self.why = why
            self.rung = True
            self._wakeup.wake()

    def wait(self, seconds: float) -> bool:
        """Wait until the event is set, at most `seconds`; return whether it is set."""
        if not self.rung and seconds > 0:
            poll = select.poll()  # one for each waiting thread, because a poll object cannot be shared
            poll.register(self._wakeup, select.POLLIN)
            # Rounded up to whole milliseconds: rounding down would make a short wait a busy loop.
            poll.poll(math.ceil(seconds * 1000))
        return self.rung
