"""Programs on Spark in a random soak: when the newest one ends, another is started."""

import math
import signal
from collections.abc import Mapping
from typing import Any

from tests.faults.mix.crew import Crew, Stage, Started, chosen
from tests.faults.mix.signals import end, pause
from tests.processes import command_line, eventually, hears, parent

TOO_MANY = 3
SPARK_LOST, SUPERSEDED, REFUSED = 1, 3, 4
# The time in which older programs must end as superseded.
_SUPERSEDED_SECONDS = 60.0


class Programs(Crew):
    """Programs on Spark. A newer one takes over from the older ones."""

    def __init__(self, stage: Stage, layout: Mapping[str, Any]) -> None:
        super().__init__(stage)
        self._layout = layout

    def begin(self) -> None:
        """Start one more program."""
        self._begin_one()

    def _begin_one(self) -> None:
        older = self.alive()
        begun = self._begun(self._layout)
        for each in older:
            # The last program to take over supersedes the others; it need not be the last that was started.
            each.excused[SUPERSEDED] = begun.excused[SUPERSEDED] = math.inf

    def keep_up(self, *, newest_ended: bool) -> None:
        if newest_ended:
            self.begin()

    def followers(self) -> list[int]:
        return [worker for started in self.alive() for worker in _workers(started)]

    def stop(self) -> None:
        older = self._started[:-1]
        eventually(
            lambda: not any(each in self.alive() for each in older),
            _SUPERSEDED_SECONDS,
            lambda: "older programs were not superseded",
        )
        super().stop()

    @property
    def current(self) -> Started:
        """The newest program."""
        return self._started[-1]

    # Faults

    def kill_worker(self, which: int) -> bool:
        return end(chosen(_workers(self.current), which))

    def kill_daemon(self) -> bool:
        return end(_daemons(self.current))

    def kill_driver(self) -> bool:
        self.current.excuse(-signal.SIGKILL)
        return end([self.current.pid])

    def kill_jvm(self) -> bool:
        self.current.excuse(SPARK_LOST)
        return end(_jvms(self.current))

    def pause_worker(self, which: int, seconds: float) -> bool:
        return pause(self._agenda, chosen(_workers(self.current), which), seconds)

    def pause_driver(self, seconds: float) -> bool:
        return pause(self._agenda, [self.current.pid], seconds)

    def pause_jvm(self, seconds: float) -> bool:
        return pause(self._agenda, _jvms(self.current), seconds)

    def newcomer(self, older: str, seconds: float, **layout: Any) -> bool:
        if len(self.alive()) >= TOO_MANY:
            return False
        if older == "stopped":
            pause(self._agenda, self.current.everything(), seconds)
        self._layout = layout
        self._begin_one()
        return True

    def restart(self, how: str, **layout: Any) -> None:
        self._layout = layout
        if how == "term":
            # A program without its signal handler yet is ended by the signal itself.
            self.current.excuse(0 if hears(self.current.pid, signal.SIGTERM) else -signal.SIGTERM)
            self.current.process.send_signal(signal.SIGTERM)
        else:
            self.current.excuse(-signal.SIGKILL)
            self.current.process.send_signal(signal.SIGKILL)


def _jvms(started: Started) -> list[int]:
    return [pid for pid in started.below() if b"org.apache.spark.deploy.SparkSubmit" in command_line(pid)]


def _daemons(started: Started) -> list[int]:
    jvms = set(_jvms(started))
    return [pid for pid in _pythons(started) if _parent(pid) in jvms]


def _workers(started: Started) -> list[int]:
    daemons = set(_daemons(started))
    return [pid for pid in _pythons(started) if _parent(pid) in daemons]


def _pythons(started: Started) -> list[int]:
    return [pid for pid in started.below() if b"python" in command_line(pid).split(b"\0")[0]]


def _parent(pid: int) -> int:
    try:
        return parent(pid)
    except OSError:
        return 0
