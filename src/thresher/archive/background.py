"""Archives in a thread of the relay's leader: one run after another, while the relay leads.

It does not disturb relaying: it has its own connections, and pauses after each batch as long as the batch took. A
failure is a warning, an alarm and a counter. Two archivers at once are safe: see `stamped_rows`. It never creates its
directory: if the disk is not mounted, rows would go to the wrong one.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from thresher.archive.archiver import Archiver
from thresher.archive.problem import ArchiverBusy
from thresher.archive.run import Archived, ArchiveJob
from thresher.archive.target import Opening
from thresher.core.errors import ThresherError

logger = logging.getLogger(__name__)

# With a space, so that it cannot be the name of a held topic.
_ALARM = "the archive"
# The end of a term waits this long for the thread. The next archiver finishes a batch that is still open then.
_END_SECONDS = 2.0
# The number of runs in a row that may find another archiver before an alarm is raised.
_BUSY_RUNS = 3
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 600.0


def pause_seconds(older_than_seconds: float) -> float:
    """Return the time between two runs: a hundredth of the age of rows, within bounds. A run reads young rows too."""
    return min(max(older_than_seconds / 100, _LEAST_PAUSE_SECONDS), _MOST_PAUSE_SECONDS)


class LeaderArchive:
    """Archives during a term. Safe from any thread."""

    def __init__(self, job: ArchiveJob, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._clock = replace(job, opening=Opening.EXISTING), clock
        self._lock = threading.Lock()
        self._rows = self._failures = self._busy = 0
        # When a run last succeeded; before the first success of a term, when the term began; None outside of terms.
        self._since: float | None = None
        self._problem: str | None = None

    @property
    def alarms(self) -> Mapping[str, str]:
        """The reason if the last run failed, or if the last few runs found another archiver."""
        problem = self._problem
        return {} if problem is None else {_ALARM: problem}

    @property
    def rows(self) -> int:
        """How many rows were archived."""
        return self._rows

    @property
    def failures(self) -> int:
        """How many runs failed."""
        return self._failures

    @property
    def success_age_seconds(self) -> float | None:
        """Seconds since a run last succeeded, or since the term began; None while the relay does not lead."""
        since = self._since
        return None if since is None else self._clock() - since

    @contextmanager
    def during(self, application: str) -> Iterator[None]:
        """Archive while the block runs. Its end waits only a moment for the thread."""
        over = threading.Event()
        thread = threading.Thread(target=self._work, args=(application, over), name="archive", daemon=True)
        self._since, self._busy = self._clock(), 0
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_END_SECONDS)
            self._since = None

    def _work(self, application: str, over: threading.Event) -> None:
        while not over.is_set():
            self._run_once(application, over)
            over.wait(pause_seconds(self._job.older_than_seconds))

    def _run_once(self, application: str, over: threading.Event) -> None:
        before = 0

        def told(done: Archived) -> None:
            nonlocal before
            with self._lock:
                self._rows += done.rows - before
            before = done.rows

        try:
            done = Archiver(self._job, application=application, stop=over.is_set, rest=over.wait, told=told).run()
        except ArchiverBusy as error:
            self._meet(error)
        except Exception as error:  # noqa: BLE001 - no error of the archive may end the relay
            self._fail(error, over)
        else:
            told(done)
            self._problem, self._busy = None, 0
            if not over.is_set():
                self._since = self._clock()

    def _meet(self, error: ArchiverBusy) -> None:
        """Count a run that found another archiver. Several in a row raise an alarm, but are no failure."""
        logger.info("%s", error)
        self._busy += 1
        if self._busy >= _BUSY_RUNS:
            self._alarm(
                f"{_BUSY_RUNS} or more runs in a row found another archiver. If there should be none, search "
                f"pg_stat_activity for sessions named 'thresher/archive' or of an older leader: {error}"
            )

    def _fail(self, error: Exception, over: threading.Event) -> None:
        if over.is_set():
            # The term is over, and a new leader has ended its sessions: not a failure.
            return
        with self._lock:
            self._failures += 1
        self._busy = 0
        self._alarm(str(error) if isinstance(error, ThresherError) else f"{type(error).__name__}: {error}")

    def _alarm(self, text: str) -> None:
        if text != self._problem:
            logger.warning("rows are not archived, and relaying goes on: %s", text)
        self._problem = text
