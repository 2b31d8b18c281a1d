"""For how long a shard has taken rows and brought none to a fate, so that a shard that stands is not called ready.

A shard stands from the first batch that it takes until a transaction with rows is committed, or a read finds no row
that may be sent now: rows that are held, with an alarm, are not among those that a read finds. It also stands while
its source is blocked: rows wait that no read returns, because too many wait before them.
"""

import time
from collections.abc import Callable
from typing import Any

from thresher.delivery.batch import Batch
from thresher.delivery.effects import Handlers, Settle, Take
from thresher.delivery.reading.read_ahead import ReadAhead
from thresher.observe.figure_sink import STANDING, FigureSink


class Flow:
    """Looks at the effects of one attempt, and shows how long the shard has stood. For the task's own thread."""

    def __init__(
        self,
        figures: FigureSink,
        ahead: ReadAhead,
        *,
        blocked_seconds: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`blocked_seconds`: for how long the source has been blocked."""
        self._figures, self._ahead, self._clock, self._blocked = figures, ahead, clock, blocked_seconds
        self._since: float | None = None
        self._empty_reads = 0
        self._shown = -1
        self._show()

    def watched(self, handlers: Handlers) -> Handlers:
        """Return the handlers, which now also tell this object about rows that are taken and settled."""
        take, settle = handlers[Take], handlers[Settle]

        def taken(effect: Take) -> Any:
            answer = take(effect)
            empty_reads = self._ahead.empty_reads
            if empty_reads != self._empty_reads:
                self._empty_reads, self._since = empty_reads, None
            if self._since is None and isinstance(answer, Batch) and len(answer.rows):
                self._since = self._clock()
            self._show()
            return answer

        def settled(effect: Settle) -> Any:
            progress: Any = effect.progress
            if not effect.recovering and progress.ids:
                self._since = None
                self._show()
            return settle(effect)

        return {**handlers, Take: taken, Settle: settled}

    def _show(self) -> None:
        seconds = int(max(0.0 if self._since is None else self._clock() - self._since, self._blocked()))
        if seconds != self._shown:
            self._shown = seconds
            self._figures.gauge(STANDING, seconds)
