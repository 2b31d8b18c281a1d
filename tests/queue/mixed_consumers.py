"""The consumers of a random soak: a few run at once; they are started, killed, stopped and ended."""

import math
import random
import signal
from typing import Any

from tests.faults.mix.crew import Crew, Stage, Started
from tests.faults.mix.signals import end, pause
from tests.queue.program import POINTS

LEAST, MOST = 2, 5


def dying(draw: random.Random) -> dict[str, Any]:
    """Draw the crash point at which a new consumer kills itself, and at which pass; some do not."""
    return {"die": draw.choice([None, None, None, *POINTS]), "after": draw.choice([1, 3, 20])}


class Consumers(Crew):
    """Programs of `tests.queue.mixed_program`, by their numbers."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._count = 0

    def begin(self) -> None:
        self.keep_up(newest_ended=True)

    def keep_up(self, *, newest_ended: bool) -> None:  # noqa: ARG002 - any of them may end
        while len(self._started) < LEAST:
            self._add()

    def followers(self) -> list[int]:
        return [each.pid for each in self.alive()]

    # Faults

    def kill_consumer(self, which: int) -> bool:
        victim = self._chosen(which)
        victim.excuse(-signal.SIGKILL)
        return end([victim.pid])

    def pause_consumer(self, which: int, seconds: float) -> bool:
        return pause(self._agenda, [self._chosen(which).pid], seconds)

    def end_consumer(self, which: int) -> None:
        """End one by SIGTERM. While it is stopped, or its broker is down, the end takes longer."""
        leaving = self._chosen(which)
        leaving.excused[0] = math.inf
        leaving.process.terminate()

    def add_consumer(self, die: str | None, after: int) -> bool:
        if len(self._started) >= MOST:
            return False
        self._add(die=die, after=after)
        return True

    def _add(self, **settings: Any) -> None:
        self._count += 1
        begun = self._begun({"number": self._count, **settings})
        # Before Python has started, the signal itself ends the process.
        begun.excused[-signal.SIGTERM] = math.inf
        if settings.get("die"):
            begun.excused[-signal.SIGKILL] = math.inf

    def _chosen(self, which: int) -> Started:
        return self._started[which % len(self._started)]
