"""The archive of a relay's leader: run after run in a thread, while the relay leads.

It cannot harm relaying: it has its own connections, waits after each batch as long as the batch took, and its failure
is a warning, an alarm and a count. Two leaders at once, or a leader and a command, are no danger: see `stamped_rows`.
It never makes its directory: where nothing is mounted, rows would go to the wrong disk.
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

# A topic's name has no space: this is no topic that waits.
_ALARM = "the archive"
# How long the end of a term waits for the thread. A batch that is open then is finished by the next archiver.
_END_SECONDS = 2.0
# Another archiver that ends in time is no news.
_BUSY_RUNS = 3
_LEAST_PAUSE_SECONDS, _MOST_PAUSE_SECONDS = 1.0, 600.0


def pause_seconds(older_than_seconds: float) -> float:
    """Return the time between two runs, a hundredth of what rows stay for: a run looks at young rows too."""
    return min(max(older_than_seconds / 100, _LEAST_PAUSE_SECONDS), _MOST_PAUSE_SECONDS)


class LeaderArchive:
    """Archives while a term lasts. Safe from any thread."""

    def __init__(self, job: ArchiveJob, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._clock = replace(job, opening=Opening.EXISTING), clock
        self._lock = threading.Lock()
        self._rows = self._failures = self._busy = 0
        # When a run last succeeded or, before the first of a term, when the term began; None outside of terms.
        self._since: float | None = None
        self._problem: str | None = None

    @property
    def alarms(self) -> Mapping[str, str]:
        """Why the last run failed, if it did, or why the last few runs did nothing."""
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
        """Archive meanwhile. The end waits for a moment only."""
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
        except Exception as error:  # noqa: BLE001 - nothing of the archive's may end the relay
            self._fail(error, over)
        else:
            told(done)
            self._problem, self._busy = None, 0
            if not over.is_set():
                self._since = self._clock()

    def _meet(self, error: ArchiverBusy) -> None:
        """Take note of another archiver. One that works for several runs, or hangs, is an alarm and no failure."""
        logger.info("%s", error)
        self._busy += 1
        if self._busy >= _BUSY_RUNS:
            self._alarm(
                f"{_BUSY_RUNS} runs or more met another archiver. If there should be none, look for sessions named "
                f"'thresher/archive' or of an older leader in pg_stat_activity: {error}"
            )

    def _fail(self, error: Exception, over: threading.Event) -> None:
        if over.is_set():
            # A successor ends the sessions of an older term.
            return
        with self._lock:
            self._failures += 1
        self._busy = 0
        self._alarm(str(error) if isinstance(error, ThresherError) else f"{type(error).__name__}: {error}")

    def _alarm(self, text: str) -> None:
        if text != self._problem:
            logger.warning("rows are not archived, and relaying goes on: %s", text)
        self._problem = text
