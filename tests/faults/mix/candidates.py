"""Programs that compete in an election, in a random soak: a few are kept running, and faults hit the one that leads."""

import signal
from collections.abc import Mapping
from typing import Any

from tests.faults.mix.crew import Stage, Started
from tests.faults.mix.programs import Programs, _workers
from tests.faults.mix.signals import end, pause

_LEAST = 2


class Candidates(Programs):
    """Programs of which one leads and the others stand by. `others` are further settings of every second one."""

    def __init__(self, stage: Stage, layout: Mapping[str, Any], others: Mapping[str, Any]) -> None:
        super().__init__(stage, layout)
        self._others = others
        self._count = 0

    def begin(self) -> None:
        """Start programs until the least number runs."""
        while len(self.alive()) < _LEAST:
            self._begin_one()

    def keep_up(self, *, newest_ended: bool) -> None:  # noqa: ARG002
        self.begin()

    def stop(self) -> None:
        # All at once: stopped one after another, each remaining program would lead for a moment.
        super(Programs, self).stop()

    @property
    def current(self) -> Started:
        """The leader, known by its workers; the newest program if none leads."""
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
