"""Stops and kills processes by their ids, and never another process that has got the same id since."""

import contextlib
import os
import signal
from collections.abc import Collection, Iterable, Iterator

from tests.faults.mix.agenda import Agenda
from thresher.spark.process import Process, find_process


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; return whether the process existed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def end(pids: Iterable[int]) -> bool:
    """`kill -9` the processes; return whether any existed."""
    return sum(send(pid, signal.SIGKILL) for pid in pids) > 0


def pause(agenda: Agenda, pids: Iterable[int], seconds: float, what: str = "go on") -> bool:
    """Stop the processes, and resume them later; return whether any existed."""
    found = [process for pid in pids if (process := find_process(pid)) is not None]
    for process in found:
        send(process.pid, signal.SIGSTOP)
    agenda.later(seconds, what, lambda: _resume(found))
    return bool(found)


@contextlib.contextmanager
def stopped(pids: Collection[int]) -> Iterator[None]:
    """Stop the processes while the context lasts."""
    found = [process for pid in pids if (process := find_process(pid)) is not None]
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
