"""Programs that compete in an election, in a random soak: a few are kept running, and faults hit the one that leads."""

import signal
from collections.abc import Mapping
from typing import Any

from tests.faults.mix.crew import Stage, Started
from tests.faults.mix.programs import Programs, _workers
from tests.faults.mix.signals import end, pause

_LEAST = 2


class Candidates(Programs):
    """What is started waits for its turn, and none ends because another leads. `others`: settings of every second."""

    def __init__(self, stage: Stage, layout: Mapping[str, Any], others: Mapping[str, Any]) -> None:
        super().__init__(stage, layout)
        self._others = others
        self._count = 0

    def begin(self) -> None:
        """Start as many as there should be at least."""
        while len(self.alive()) < _LEAST:
            self._begin_one()

    def keep_up(self, *, newest_ended: bool) -> None:  # noqa: ARG002
        self.begin()

    def stop(self) -> None:
        # Not one after another: whoever is left alone would lead for a moment.
        super(Programs, self).stop()

    @property
    def current(self) -> Started:
        """The one that has workers, which only a leader has; else the newest."""
        alive = self.alive() or self._started
        return next((each for each in alive if _workers(each)), alive[-1])

    # Faults

    def pause_family(self, seconds: float) -> bool:
        return pause(self._agenda, self.current.everything(), seconds)

    def kill_family(self) -> bool:
        self.current.excuse(-signal.SIGKILL)
        return end(self.current.everything())

    def _begin_one(self) -> None:
        self._count += 1
        self._begun({**self._layout, **(self._others if self._count % 2 == 0 else {})})
