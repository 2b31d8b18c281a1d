"""A bell that can be rung from any thread and from a signal handler, once, and is heard by whoever waits.

`threading.Event` will not do: a handler that sets it while its own thread waits on it can lock itself out for ever.
"""

import math
import os
import select

from thresher.spark.wakeup_pipe import WakeupPipe


class Bell:
    """Rung at most once; the first reason stays."""

    def __init__(self) -> None:
        self.rung = False
        self.why = ""
        self._wakeup = WakeupPipe()
        self._owner = os.getpid()

    def ring(self, why: str) -> None:
        """Ring. Never blocks, never raises."""
        # A forked child has the same pipe, and nothing to say in it.
        if not self.rung and os.getpid() == self._owner:
            self.why = why
            self.rung = True
            self._wakeup.wake()

    def wait(self, seconds: float) -> bool:
        """Wait until it rings, at most so long; return whether it has rung."""
        if not self.rung and seconds > 0:
            poll = select.poll()  # one for each who waits: it is not made to be shared
            poll.register(self._wakeup, select.POLLIN)
            # Up to the next whole millisecond: rounding down would make a short wait a busy loop.
            poll.poll(math.ceil(seconds * 1000))
        return self.rung
