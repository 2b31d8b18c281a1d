"""Facts about processes that the kernel knows: who is who, although ids come back, and how big."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process by its id and the moment it was born, in ticks since boot: no other ever has both."""

    pid: int
    born: int

    @property
    def alive(self) -> bool:
        """Whether it still runs, stopped or not; one that only waits to be collected does not."""
        return look(self.pid) == self

    def kill(self) -> None:
        """`kill -9` it, and nobody who got its id since. Harmless when it is gone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)


def look(pid: int) -> Process | None:
    """Return the process that has this id on this machine now, unless it is dead."""
    try:
        # The name may hold spaces and brackets; the fields behind it do not.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid=pid, born=int(fields[19]))


def resident_bytes() -> int:
    """Return how much memory this process occupies."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
