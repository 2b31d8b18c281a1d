"""Takes over: repeats attempts after retryable errors, and raises any other error, on which an operator has to act.

An attempt may hang in a client. It therefore runs in a thread of its own, which a stop does not wait for. An abandoned
attempt displaces no leader: it asks `wanted` first, and the answer is no.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from thresher.core.errors import ThresherError, kind_of
from thresher.service.abandonable_call import CallAbandoned, answer_of
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.server_log import REPEAT_SECONDS
from thresher.service.workload import Term, Workload

logger = logging.getLogger(__name__)

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 10.0
_LOOK_SECONDS = 0.1


class TakeOver:
    """Takes over for one workload, under one term after another. `terms` returns a new id at each call.

    The next attempt follows `look_seconds` after one that could take nothing over, and about `first_wait_seconds`,
    doubled each time, after one that failed.
    """

    def __init__(
        self,
        workload: Workload,
        process_counts: ProcessCounts,
        *,
        stop_requested: threading.Event,
        terms: Callable[[], str],
        wanted: Callable[[], bool],
        draw: Callable[[], float],
        first_wait_seconds: float = _FIRST_WAIT_SECONDS,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        self._workload, self._process_counts = workload, process_counts
        # Set when a stop is requested.
        self._stop_requested = stop_requested
        self._terms, self._wanted, self._draw = terms, wanted, draw
        self._first_wait_seconds, self._look_seconds = first_wait_seconds, look_seconds
        # The reason why this process cannot take over yet.
        self.waiting_for: str | None = None
        # Failed attempts, for any thread to read; when the first failed, and when a failure was last logged.
        self.failures, self._failing_since, self._logged_at = 0, 0.0, 0.0

    def run(self) -> Term | None:
        """Take over, and return the term; None if a stop is requested first.

        Each reason to wait is logged at once, and again every minute while it lasts.
        """
        wait = self._first_wait_seconds
        term_id = self._terms()
        while not self._stop_requested.is_set():
            try:
                term = self._attempt(term_id)
            except ThresherError as error:
                self._process_counts.count_error(error)
                if not error.retryable:
                    raise
                self._tell(error)
                self._stop_requested.wait(wait * (0.5 + 0.5 * self._draw()))
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
                continue
            if term is not None:
                self._taken(term)
                return term
            self._stop_requested.wait(self._look_seconds)
        return None

    def _attempt(self, term_id: str) -> Term | None:
        with contextlib.suppress(CallAbandoned):
            attempt = partial(self._workload.take_over, term_id, self._is_wanted)
            return answer_of(attempt, unless=self._stop_requested, name="take-over")
        return None

    def _is_wanted(self) -> bool:
        return self._wanted() and not self._stop_requested.is_set()

    def _tell(self, error: ThresherError) -> None:
        label, now = self._workload.wording.label, time.monotonic()
        fields: dict[str, object] = {label: self._workload.name, "kind": kind_of(error)}
        if self.failures == 0:
            self._failing_since = now
        self.failures += 1
        if str(error) != self.waiting_for:
            self._logged_at, self.waiting_for = now, str(error)
            message = f"the {label} waits to take over: %s"
            logger.warning(message, error, extra=fields)
        elif now - self._logged_at >= REPEAT_SECONDS:
            self._logged_at = now
            message = f"the {label} has waited to take over for %.0f s, %d attempts failed: %s"
            fields["attempts"] = self.failures
            logger.warning(message, now - self._failing_since, self.failures, error, extra=fields)

    def _taken(self, term: Term) -> None:
        self.waiting_for, self.failures = None, 0
        self._process_counts.count("takeovers")
        name, label = self._workload.name, self._workload.wording.label
        message = f"the {label} %s has taken over, with term %s"
        logger.info(message, name, term.id, extra={label: name, "term": term.id})
