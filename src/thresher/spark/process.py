"""Processes as the kernel knows them: identity that survives reused process ids, and memory in use."""

import contextlib
import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process by its id and its start time in ticks since boot. No two processes share both."""

    pid: int
    born: int

    @property
    def alive(self) -> bool:
        """Whether the process still exists. A stopped process does; a zombie process does not."""
        return find_process(self.pid) == self

    def kill(self) -> None:
        """Send SIGKILL, never to another process that got the same id. Harmless when the process is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)


def find_process(pid: int) -> Process | None:
    """Return the live process that has this id on this machine, or None."""
    try:
        # The command's name may hold spaces and brackets; the fields after it do not.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid=pid, born=int(fields[19]))


def signal_at_parent_death(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def resident_bytes() -> int:
    """Return this process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
