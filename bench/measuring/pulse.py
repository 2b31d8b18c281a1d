"""How evenly the machine's processors run while something is measured on them.

A virtual machine's processors stand still or crawl for milliseconds, for reasons of their host's. A pulse is a piece of
work that is always the same, done again and again on each processor before everything else there. Where it takes much
longer than it usually does, nothing of ours was the cause; and whatever was under way took longer too.
"""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench.measuring.apart import Line, running

_STEPS, _PAUSE_SECONDS, _PRIORITY = 1_500, 0.002, 50
# So many times what it usually takes.
_STALL = 3.0
# In nanoseconds of the monotonic clock.
Span = tuple[int, int]


@dataclass(slots=True)
class Pulse:
    """When some processor stalled. Without the right to come first there is no telling."""

    known: bool = True
    stalls: list[Span] = field(default_factory=list)

    def stalled(self, begin: int, end: int) -> bool:
        """Whether some processor stalled within this time."""
        return any(start <= end and stop >= begin for start, stop in self.stalls)


@contextmanager
def feeling() -> Iterator[Pulse]:
    """Feel the pulse of every processor meanwhile; what was found is there at the end."""
    pulse = Pulse()
    with ExitStack() as stack:
        lines = [stack.enter_context(running(_beat, each)) for each in sorted(os.sched_getaffinity(0))]
        yield pulse
        for line in lines:
            line.send("enough")
            beats = line.recv()
            pulse.known &= bool(beats)
            pulse.stalls += stalls(beats)


def stalls(beats: Sequence[Span]) -> list[Span]:
    """Return those that took much longer than usual."""
    if not beats:
        return []
    usual = statistics.quantiles((stop - start for start, stop in beats), n=4)[0]
    return [(start, stop) for start, stop in beats if stop - start > _STALL * usual]


def _beat(processor: int, line: Line) -> None:
    os.sched_setaffinity(0, {processor})
    beats: list[Span] = []
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except PermissionError:
        line.send("ready")
        line.recv()
        line.send(beats)
        return
    line.send("ready")
    while not line.poll(_PAUSE_SECONDS):
        start = time.monotonic_ns()
        for _ in range(_STEPS):
            pass
        beats.append((start, time.monotonic_ns()))
    line.send(beats)
