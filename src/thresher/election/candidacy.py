"""The part that all elections share: a tenure that many threads read, and a queue of changes for one caller.

The clock is read under the lock: a thread that has seen a deadline pass never sees it moved afterwards.
"""

import collections
import logging
import threading
import time
from collections.abc import Callable
from uuid import UUID, uuid4

from thresher.core.errors import ThresherError
from thresher.election.leadership import Change
from thresher.election.problem import ElectionMisused
from thresher.election.tenure import Event, RefreshAsked, Tenure, Tick, Withdrawn, decide

# The `trouble` of a competitor that has just started: it is not logged.
NOT_YET, JOINING = "it has not answered yet", "it joins its group"


class Candidacy:
    """The leadership of one competitor, as its events have made it. Safe from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, draw: Callable[[], UUID] = uuid4) -> None:
        self._clock, self._draw = clock, draw
        self._tenure = Tenure()
        self._changes: collections.deque[Change] = collections.deque()
        self._error: ThresherError | None = None
        self._closed = False
        # The reason why the election waits; None if it does not. Read without the lock.
        self.trouble: str | None = None
        # A text that names the leader, as far as a standby knows it. Read without the lock.
        self.leader: str | None = None
        self._changed = threading.Condition()

    @property
    def leader_id(self) -> UUID | None:
        """The id of the current leadership; None for a standby."""
        with self._changed:
            self.handle(Tick())
            return self._tenure.leader_id

    @property
    def granted(self) -> bool:
        """Whether leadership was granted to this competitor, confirmed or not."""
        return self._tenure.granted

    @property
    def until(self) -> float:
        """The deadline: when the leadership ends without a further confirmation."""
        return self._tenure.until

    def now(self) -> float:
        """Return the time by which deadlines are judged."""
        return self._clock()

    def handle(self, event: Event) -> list[Change]:
        """Apply an event, and return the changes that it caused."""
        with self._changed:
            if self._closed:
                return []
            self._tenure, changes = decide(self._tenure, event, now=self._clock(), draw=self._draw)
            if changes:
                self._changes.extend(changes)
                self._changed.notify_all()
            return changes

    def refresh(self) -> UUID | None:
        """Draw another id for the leadership and return it; None for a standby."""
        with self._changed:
            self.handle(RefreshAsked())
            return self._tenure.leader_id

    def fail(self, error: ThresherError) -> None:
        """Give up the leadership, and make `wait` raise this error."""
        with self._changed:
            self.handle(Withdrawn())
            self._error = self._error or error
            self._changed.notify_all()

    def close(self) -> None:
        """Give up the leadership, and make `wait` return at once."""
        with self._changed:
            self.handle(Withdrawn())
            self._closed = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> Change | None:
        """Return the next change, or None. Raises an error that somebody has to act on."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while True:
                self.handle(Tick())
                if self._changes:
                    return self._changes.popleft()
                if self._error is not None:
                    raise self._error
                left = deadline - time.monotonic()
                if self._closed or left <= 0:
                    return None
                if self._tenure.leader_id is not None:
                    left = min(left, self._tenure.until - self._clock())
                self._changed.wait(max(0.0, left))


class Competitor(Candidacy):
    """A candidacy with a thread of its own, which does all of the competing."""

    # The log messages for trouble, and for its end.
    waits, goes_on = "the election waits: %s", "the election goes on"

    def __init__(self, name: str, clock: Callable[[], float], leave_seconds: float, log: logging.Logger) -> None:
        super().__init__(clock)
        self._log = log
        self._leave_seconds = leave_seconds
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.trouble = NOT_YET
        self._started = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Raises `ElectionMisused` the second time."""
        with self._lock:
            if self._started:
                raise ElectionMisused("a leadership is started once: make another")
            self._started = True
            if not self._stopping.is_set():
                self._thread.start()

    def stop(self) -> None:
        """Leave the election at once."""
        self.close()
        with self._lock:
            self._stopping.set()
            self._wake()
        if self._thread.is_alive():
            self._thread.join(self._leave_seconds)

    def _note(self, trouble: str | None) -> None:
        """Record what the election waits for. New trouble is logged once, and so is its end."""
        if trouble not in {None, NOT_YET, JOINING, self.trouble}:
            self._log.warning(self.waits, trouble)
        elif trouble is None and self.trouble not in {None, NOT_YET, JOINING}:
            self._log.info(self.goes_on)
        self.trouble = trouble

    def _wake(self) -> None:
        """Interrupt the thread's waits. (A wait on `_stopping` ends by itself.)"""

    def _run(self) -> None:
        raise NotImplementedError
