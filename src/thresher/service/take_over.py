"""Taking over, as often as it takes: waits for what time may mend, and raises what somebody has to act on.

An attempt runs in a thread of its own, because it may hang in a client: a stop does not wait for it. An attempt that is
left behind asks `wanted` before it displaces anybody, and is told no.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from thresher.core.errors import ThresherError, kind_of
from thresher.service.ledger import Ledger
from thresher.service.left_behind import LeftBehind, answer_of
from thresher.service.servers.server_log import REPEAT_SECONDS
from thresher.service.workload import Term, Workload

logger = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 10.0
_LOOK_SECONDS = 0.1


class TakeOver:
    """Takes over for one workload, under one term after another. `terms` gives ids that were never given before."""

    def __init__(
        self,
        workload: Workload,
        ledger: Ledger,
        *,
        asked: threading.Event,
        terms: Callable[[], str],
        wanted: Callable[[], bool],
        draw: Callable[[], float],
    ) -> None:
        self._workload, self._ledger = workload, ledger
        # Set when a stop was asked for.
        self._asked = asked
        self._terms, self._wanted, self._draw = terms, wanted, draw
        # The reason why it cannot take over yet.
        self.waiting_for: str | None = None
        # Attempts that have failed, for any thread to read; since when, and when that was last told.
        self.failures, self._failing_since, self._told = 0, 0.0, 0.0

    def run(self) -> Term | None:
        """Take over, and return the term. None when a stop was asked for.

        Each reason to wait is told at once, and again every minute while it lasts.
        """
        wait = _FIRST_WAIT_SECONDS
        term_id = self._terms()
        while not self._asked.is_set():
            try:
                term = self._attempt(term_id)
            except ThresherError as error:
                self._ledger.count_error(error)
                if not error.retryable:
                    raise
                self._tell(error)
                self._asked.wait(wait * (0.5 + 0.5 * self._draw()))
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
                continue
            if term is not None:
                self._taken(term)
                return term
            self._asked.wait(_LOOK_SECONDS)
        return None

    def _attempt(self, term_id: str) -> Term | None:
        with contextlib.suppress(LeftBehind):
            attempt = partial(self._workload.take_over, term_id, self._is_wanted)
            return answer_of(attempt, unless=self._asked, name="take-over")
        return None

    def _is_wanted(self) -> bool:
        return self._wanted() and not self._asked.is_set()

    def _tell(self, error: ThresherError) -> None:
        label, now = self._workload.wording.label, time.monotonic()
        fields: dict[str, object] = {label: self._workload.name, "kind": kind_of(error)}
        if self.failures == 0:
            self._failing_since = now
        self.failures += 1
        if str(error) != self.waiting_for:
            self._told, self.waiting_for = now, str(error)
            message = f"the {label} waits to take over: %s"
            logger.warning(message, error, extra=fields)
        elif now - self._told >= REPEAT_SECONDS:
            self._told = now
            message = f"the {label} has waited to take over for %.0f s, %d attempts failed: %s"
            fields["attempts"] = self.failures
            logger.warning(message, now - self._failing_since, self.failures, error, extra=fields)

    def _taken(self, term: Term) -> None:
        self.waiting_for, self.failures = None, 0
        self._ledger.count("takeovers")
        name, label = self._workload.name, self._workload.wording.label
        message = f"the {label} %s has taken over, with term %s"
        logger.info(message, name, term.id, extra={label: name, "term": term.id})
