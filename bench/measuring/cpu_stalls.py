"""Detects stalls of the machine's processors during a measurement.

A virtual machine's processors may stop or slow down for milliseconds, because of their host. A pulse is a fixed piece
of work that is repeated on each processor, at real-time priority. A pulse that takes much longer than usual shows that
the processor stalled, through no fault of the measured program, whose work took longer too.
"""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from bench.measuring.apart import Line, running

_STEPS, _PAUSE_SECONDS, _PRIORITY = 1_500, 0.002, 50
# A pulse that takes this many times its usual time is a stall.
_STALL = 3.0
# Begin and end, in nanoseconds of the monotonic clock.
Span = tuple[int, int]


@dataclass(slots=True)
class CpuStalls:
    """The stalls of all processors. Without the right to real-time priority they are not known."""

    known: bool = True
    stalls: list[Span] = field(default_factory=list)

    def stalled(self, begin: int, end: int) -> bool:
        """Whether any processor stalled within this time."""
        return any(start <= end and stop >= begin for start, stop in self.stalls)


@contextmanager
def measuring_stalls() -> Iterator[CpuStalls]:
    """Measure the pulse of every processor while the context lasts; the stalls are known at its end."""
    cpu_stalls = CpuStalls()
    with ExitStack() as stack:
        lines = [stack.enter_context(running(_beat, each)) for each in sorted(os.sched_getaffinity(0))]
        yield cpu_stalls
        for line in lines:
            line.send("enough")
            beats = line.recv()
            cpu_stalls.known &= bool(beats)
            cpu_stalls.stalls += stalls(beats)


def stalls(beats: Sequence[Span]) -> list[Span]:
    """Return the pulses that took much longer than usual."""
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
