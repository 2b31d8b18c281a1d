"""Actions that are due later in a random soak. Most of them heal a fault, and are retried until they succeed."""

import heapq
import itertools
import time
from collections.abc import Callable

import psycopg
from confluent_kafka import KafkaException

from thresher.core.errors import ThresherError

# The errors of a call while a server is down.
DOWN = (psycopg.Error, KafkaException, ThresherError)
_AGAIN_SECONDS = 2.0
_HEALED_SECONDS = 120.0


class Agenda:
    """Actions by the time at which they are due, the clock of the run, and its log."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._due: list[tuple[float, int, str, Callable[[], None]]] = []
        self._places = itertools.count()
        self._began = time.monotonic()

    def begin(self) -> None:
        """Start the clock."""
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """The seconds since `begin`."""
        return time.monotonic() - self._began

    def tell(self, what: str) -> None:
        """Log an event with the current time."""
        self._tell(f"{self.now:7.1f} s  {what}")

    def later(self, seconds: float, what: str, action: Callable[[], None]) -> None:
        """Schedule an action in `seconds`, under a name."""
        heapq.heappush(self._due, (self.now + seconds, next(self._places), what, action))

    def __contains__(self, what: str) -> bool:
        return any(name == what for _, _, name, _ in self._due)

    def do_due(self, now: float) -> None:
        """Do the actions that are due; one that fails because a server is down is scheduled again."""
        while self._due and self._due[0][0] <= now:
            _, _, what, action = heapq.heappop(self._due)
            try:
                action()
            except DOWN as error:
                self.tell(f"{what} is tried again later: {str(error).strip()}")
                self.later(_AGAIN_SECONDS, what, action)

    def heal(self) -> None:
        """Do all scheduled actions now."""
        deadline = time.monotonic() + _HEALED_SECONDS
        while self._due:
            assert time.monotonic() < deadline, f"not healed: {[what for _, _, what, _ in self._due]}"
            self.do_due(self._due[0][0])
