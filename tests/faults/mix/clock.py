"""The clock faults of a random soak: of its relays' own clocks, and of their view of the database's."""

import itertools
from pathlib import Path

from tests.faults.drift import put_off, put_right
from tests.faults.mix.agenda import Agenda


class Clock:
    """The clock that drivers and workers follow."""

    def __init__(self, file: Path, *, agenda: Agenda) -> None:
        self._file, self._agenda = file, agenda
        self._settings, self._latest = itertools.count(), -1

    # Faults

    def clock(self, offset: str, seconds: float) -> None:
        """Set the clocks wrong for a while; a newer offset replaces an older one."""
        put_off(self._file, offset)
        self._latest = mine = next(self._settings)
        self._agenda.later(seconds, "clock", lambda: self._right(mine))

    def _right(self, setting: int) -> None:
        if setting == self._latest:
            put_right(self._file)
