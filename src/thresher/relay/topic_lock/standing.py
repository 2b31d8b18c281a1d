"""For how long rows of a topic have stood that any process might send: shown as `rows-stand` and as an alarm.

A topic stands while its lock is free and nobody takes it: each taking raises its token. Topics that are missing, that
rest after an error or have waiting rows do not count, nor those that a process is working on.
"""

from collections.abc import Iterable

from thresher.db.topic_locks import LockState
from thresher.observe.figure_sink import STANDING, FigureSink


class Standing:
    """The free locks that one worker has seen, round by round. For one thread; the time is passed in."""

    def __init__(self, figures: FigureSink) -> None:
        self._figures = figures
        # By the lock's name: its token, and since when it was seen free with that token.
        self._free: dict[str, tuple[int, float]] = {}
        self._oldest: float | None = None
        self._shown = -1

    def look(self, states: Iterable[LockState], now: float) -> None:
        """Note which locks are free now."""
        free: dict[str, tuple[int, float]] = {}
        for state in states:
            if state.token is not None and state.free and not state.troubled and state.missing_seconds is None:
                token, since = self._free.get(state.name, (None, now))
                free[state.name] = (state.token, since if token == state.token else now)
        self._free = free
        self._oldest = min((since for _, since in free.values()), default=None)
        self.show(now)

    def show(self, now: float) -> None:
        """Show for how long the longest has stood. Between two rounds, a lock that was taken still counts."""
        seconds = 0 if self._oldest is None else int(now - self._oldest)
        if seconds != self._shown:
            self._shown = seconds
            self._figures.gauge(STANDING, seconds)
