"""Processes that are stopped for a while, or ended: by their ids, and nobody who got one of these since."""

import contextlib
import os
import signal
from collections.abc import Collection, Iterable, Iterator

from tests.faults.mix.agenda import Agenda
from thresher.spark.process import Process, look


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; whether there was anybody."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def end(pids: Iterable[int]) -> bool:
    """`kill -9` them; whether there was anybody."""
    return sum(send(pid, signal.SIGKILL) for pid in pids) > 0


def pause(agenda: Agenda, pids: Iterable[int], seconds: float, what: str = "go on") -> bool:
    """Stop them, and let them go on later; whether there was anybody."""
    found = [process for pid in pids if (process := look(pid)) is not None]
    for process in found:
        send(process.pid, signal.SIGSTOP)
    agenda.later(seconds, what, lambda: _resume(found))
    return bool(found)


@contextlib.contextmanager
def stopped(pids: Collection[int]) -> Iterator[None]:
    """Have them stand still for as long as this lasts."""
    found = [process for pid in pids if (process := look(pid)) is not None]
    try:
        for process in found:
            send(process.pid, signal.SIGSTOP)
        yield
    finally:
        _resume(found)


def _resume(processes: Iterable[Process]) -> None:
    for process in processes:
        if process.alive:
            send(process.pid, signal.SIGCONT)
