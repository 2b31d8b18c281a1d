"""What is due later in a random soak: above all what heals a fault, which has to happen, however often it is tried."""

import heapq
import itertools
import time
from collections.abc import Callable

import psycopg
from confluent_kafka import KafkaException

from thresher.core.errors import ThresherError

# What a server that is down just now makes of anything.
DOWN = (psycopg.Error, KafkaException, ThresherError)
_AGAIN_SECONDS = 2.0
_HEALED_SECONDS = 120.0


class Agenda:
    """Actions by the time at which they are due, the clock of the run, and the voice that tells what happens when."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._due: list[tuple[float, int, str, Callable[[], None]]] = []
        self._places = itertools.count()
        self._began = time.monotonic()

    def begin(self) -> None:
        """Count the time from here."""
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self._began

    def tell(self, what: str) -> None:
        """Say that something happens now."""
        self._tell(f"{self.now:7.1f} s  {what}")

    def later(self, seconds: float, what: str, action: Callable[[], None]) -> None:
        """Have something done in so many seconds, under a name."""
        heapq.heappush(self._due, (self.now + seconds, next(self._places), what, action))

    def __contains__(self, what: str) -> bool:
        return any(name == what for _, _, name, _ in self._due)

    def do_due(self, now: float) -> None:
        """Do what is due; what fails because a server is down comes again: it will be back."""
        while self._due and self._due[0][0] <= now:
            _, _, what, action = heapq.heappop(self._due)
            try:
                action()
            except DOWN as error:
                self.tell(f"{what} comes later: {str(error).strip()}")
                self.later(_AGAIN_SECONDS, what, action)

    def heal(self) -> None:
        """Do everything at once."""
        deadline = time.monotonic() + _HEALED_SECONDS
        while self._due:
            assert time.monotonic() < deadline, f"not healed: {[what for _, _, what, _ in self._due]}"
            self.do_due(self._due[0][0])
