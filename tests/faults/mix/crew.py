"""The programs of a random soak: started, watched and ended; their exit codes are checked.

An exit code is expected for a while after a fault that may cause it. Any other code is an error.
"""

import abc
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.faults.mix.agenda import Agenda
from tests.faults.mix.outline import Outline
from tests.faults.mix.signals import end
from tests.processes import descendants

# Longer than a fault and its effects last.
AFTERMATH_SECONDS = 90.0
_END_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The run as a crew sees it: a function that starts a program, the agenda, and the log."""

    start: Callable[[Mapping[str, Any]], "subprocess.Popen[bytes]"]
    agenda: Agenda
    outline: Outline
    said: Callable[[], str]


class Started:
    """A program's process, and the exit codes that are expected of it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        # By exit code: until when it is expected.
        self.excused: dict[int, float] = {}

    @property
    def pid(self) -> int:
        return self.process.pid

    def excuse(self, code: int) -> None:
        self.excused[code] = time.monotonic() + AFTERMATH_SECONDS

    def everything(self) -> list[int]:
        return [self.pid, *self.below()]

    def below(self) -> list[int]:
        return sorted(descendants(self.pid))


class Crew(abc.ABC):
    """The programs that were started and have not been seen to end, the newest last."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._agenda, self._outline = stage.agenda, stage.outline
        self._started: list[Started] = []
        self._excused: dict[int, float] = {}

    @abc.abstractmethod
    def begin(self) -> None:
        """Start the first programs."""

    @abc.abstractmethod
    def keep_up(self, *, newest_ended: bool) -> None:
        """Start more programs, if too few run."""

    @abc.abstractmethod
    def followers(self) -> list[int]:
        """Return the processes that write their stacks at a signal."""

    def alive(self) -> list[Started]:
        return [each for each in self._started if each.process.poll() is None]

    def look_after(self) -> None:
        """Check the exit codes of programs that have ended, and keep enough of them running."""
        now = time.monotonic()
        ended = [each for each in self._started if each.process.poll() is not None]
        for started in ended:
            code = started.process.returncode
            self._outline.exits.update([code])
            if started.excused.get(code, 0.0) < now:
                self._outline.wrong.append(
                    f"at {self._agenda.now:.1f} s a program ended with {code}: {self._stage.said()}"
                )
        newest_ended = not self._started or self._started[-1] in ended
        self._started = [each for each in self._started if each not in ended]
        self.keep_up(newest_ended=newest_ended)

    def excuse(self, code: int) -> None:
        """Expect this exit code for a while, also of programs that are started meanwhile."""
        self._excused[code] = time.monotonic() + AFTERMATH_SECONDS
        for started in self._started:
            started.excuse(code)

    def stop(self) -> None:
        """End the programs by SIGTERM."""
        self.look_after()
        for started in self.alive():
            started.process.terminate()
        for started in self._started:
            if (code := started.process.wait(_END_SECONDS)) != 0:
                self._outline.wrong.append(f"stopped by SIGTERM, the program ended with {code}")

    def close(self) -> None:
        """Kill all processes that are left."""
        for started in self._started:
            if started.process.poll() is None:
                end(started.everything())
            started.process.wait()

    def _begun(self, settings: Mapping[str, Any]) -> Started:
        begun = Started(self._stage.start(settings))
        begun.excused.update(self._excused)
        self._started.append(begun)
        return begun


def chosen(among: list[int], which: int) -> list[int]:
    """Return the process that the schedule chose, as a list; empty if there is none."""
    return [among[which % len(among)]] if among else []
