"""The programs of a random soak: the newest is kept running, whatever becomes of it, and exit codes are judged.

A code is no wonder for a while after what leads to it; any other is wrong.
"""

import math
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.faults.mix.agenda import Agenda
from tests.faults.mix.outline import Outline
from tests.faults.mix.signals import end, pause
from tests.processes import command_line, descendants, parent

# Longer than a fault and what it leads to may last.
AFTERMATH_SECONDS = 90.0
TOO_MANY = 3
SPARK_LOST, SUPERSEDED, REFUSED = 1, 3, 4


class Started:
    """A program's process, and what was done to it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        # Until when an exit code is no wonder.
        self.excused: dict[int, float] = {}

    @property
    def pid(self) -> int:
        return self.process.pid

    def excuse(self, code: int) -> None:
        self.excused[code] = time.monotonic() + AFTERMATH_SECONDS

    def jvms(self) -> list[int]:
        return [pid for pid in self._below() if b"org.apache.spark.deploy.SparkSubmit" in command_line(pid)]

    def daemons(self) -> list[int]:
        jvms = set(self.jvms())
        return [pid for pid in self._pythons() if _parent(pid) in jvms]

    def workers(self) -> list[int]:
        daemons = set(self.daemons())
        return [pid for pid in self._pythons() if _parent(pid) in daemons]

    def everything(self) -> list[int]:
        return [self.pid, *self._below()]

    def _below(self) -> list[int]:
        return sorted(descendants(self.pid))

    def _pythons(self) -> list[int]:
        return [pid for pid in self._below() if b"python" in command_line(pid).split(b"\0")[0]]


class Programs:
    """Those that were started and have not been seen to end, the newest last; and what is done to them."""

    def __init__(
        self,
        start: Callable[[Mapping[str, Any]], "subprocess.Popen[bytes]"],
        layout: Mapping[str, Any],
        *,
        agenda: Agenda,
        outline: Outline,
        said: Callable[[], str],
    ) -> None:
        self._start, self._layout = start, layout
        self._agenda, self._outline, self._said = agenda, outline, said
        self._started: list[Started] = []
        self._excused: dict[int, float] = {}

    def begin(self) -> None:
        """Start one more."""
        begun = Started(self._start(self._layout))
        begun.excused.update(self._excused)
        for older in self.alive():
            # Whichever takes over last supersedes the others, and that need not be the one that was started last.
            older.excused[SUPERSEDED] = begun.excused[SUPERSEDED] = math.inf
        self._started.append(begun)

    @property
    def current(self) -> Started:
        """The newest."""
        return self._started[-1]

    @property
    def older(self) -> list[Started]:
        """Those before it."""
        return self._started[:-1]

    def alive(self) -> list[Started]:
        return [each for each in self._started if each.process.poll() is None]

    def look_after(self) -> None:
        """See with what programs have ended, and keep the newest running."""
        now = time.monotonic()
        for started in [each for each in self._started if each.process.poll() is not None]:
            code = started.process.returncode
            newest = started is self.current
            self._started.remove(started)
            self._outline.exits.update([code])
            if started.excused.get(code, 0.0) < now:
                self._outline.wrong.append(f"at {self._agenda.now:.1f} s a program ended with {code}: {self._said()}")
            if newest:
                self.begin()

    def excuse(self, code: int) -> None:
        """Wonder at none that ends so for a while, one that is started meanwhile included."""
        self._excused[code] = time.monotonic() + AFTERMATH_SECONDS
        for started in self._started:
            started.excuse(code)

    def close(self) -> None:
        """Leave nothing behind."""
        for started in self._started:
            if started.process.poll() is None:
                end(started.everything())
            started.process.wait()

    # Faults

    def kill_worker(self, which: int) -> bool:
        return end(_chosen(self.current.workers(), which))

    def kill_daemon(self) -> bool:
        return end(self.current.daemons())

    def kill_driver(self) -> bool:
        self.current.excuse(-signal.SIGKILL)
        return end([self.current.pid])

    def kill_jvm(self) -> bool:
        self.current.excuse(SPARK_LOST)
        return end(self.current.jvms())

    def pause_worker(self, which: int, seconds: float) -> bool:
        return pause(self._agenda, _chosen(self.current.workers(), which), seconds)

    def pause_driver(self, seconds: float) -> bool:
        return pause(self._agenda, [self.current.pid], seconds)

    def pause_jvm(self, seconds: float) -> bool:
        return pause(self._agenda, self.current.jvms(), seconds)

    def newcomer(self, older: str, seconds: float, **layout: Any) -> bool:
        if len(self.alive()) >= TOO_MANY:
            return False
        if older == "stopped":
            pause(self._agenda, self.current.everything(), seconds)
        self._layout = layout
        self.begin()
        return True

    def restart(self, how: str, **layout: Any) -> None:
        self._layout = layout
        self.current.excuse(0 if how == "term" else -signal.SIGKILL)
        self.current.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGKILL)


def _chosen(pids: list[int], which: int) -> list[int]:
    return [pids[which % len(pids)]] if pids else []


def _parent(pid: int) -> int:
    try:
        return parent(pid)
    except OSError:
        return 0
