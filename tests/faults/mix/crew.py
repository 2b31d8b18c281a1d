"""The programs of a random soak: started, watched, and ended; their exit codes are judged.

A code is no wonder for a while after what leads to it; any other is wrong.
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

# Longer than a fault and what it leads to may last.
AFTERMATH_SECONDS = 90.0
_END_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a crew needs of its run: how a program with these settings is started, and where to say what happens."""

    start: Callable[[Mapping[str, Any]], "subprocess.Popen[bytes]"]
    agenda: Agenda
    outline: Outline
    said: Callable[[], str]


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

    def everything(self) -> list[int]:
        return [self.pid, *self.below()]

    def below(self) -> list[int]:
        return sorted(descendants(self.pid))


class Crew(abc.ABC):
    """Those that were started and have not been seen to end, the newest last."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._agenda, self._outline = stage.agenda, stage.outline
        self._started: list[Started] = []
        self._excused: dict[int, float] = {}

    @abc.abstractmethod
    def begin(self) -> None:
        """Start as many as there are at first."""

    @abc.abstractmethod
    def keep_up(self, *, newest_ended: bool) -> None:
        """Start others, where there should be more."""

    @abc.abstractmethod
    def followers(self) -> list[int]:
        """Return the processes that write their stacks when they are asked."""

    def alive(self) -> list[Started]:
        return [each for each in self._started if each.process.poll() is None]

    def look_after(self) -> None:
        """See with what programs have ended, and keep as many running as there should be."""
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
        """Wonder at none that ends so for a while, one that is started meanwhile included."""
        self._excused[code] = time.monotonic() + AFTERMATH_SECONDS
        for started in self._started:
            started.excuse(code)

    def stop(self) -> None:
        """End the programs in good order."""
        self.look_after()
        for started in self.alive():
            started.process.terminate()
        for started in self._started:
            if (code := started.process.wait(_END_SECONDS)) != 0:
                self._outline.wrong.append(f"stopped in good order, the program ended with {code}")

    def close(self) -> None:
        """Leave nothing behind."""
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
    """Return the one that a schedule has drawn, if there is any."""
    return [among[which % len(among)]] if among else []
