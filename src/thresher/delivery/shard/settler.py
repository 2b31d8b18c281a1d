"""Settles in a thread of its own, while the next transaction is filled."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

P = TypeVar("P")


class Settler(Generic[P]):
    """Executes records one after another. A failure is raised by the next call; nothing is settled after it."""

    def __init__(self, settle: Callable[[P, bool], None]) -> None:
        self._settle = settle
        self._work: queue.SimpleQueue[tuple[P, bool] | None] = queue.SimpleQueue()
        self._state = threading.Condition()
        self._begun = 0
        self._done = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="settler", daemon=True)
        self._thread.start()

    def begin(self, progress: P, recovering: bool) -> None:
        """Hand a committed record over."""
        self._begun += 1
        self._work.put((progress, recovering))

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until everything handed over is durable, at most so long, and return whether it is."""
        with self._state:
            ended = self._state.wait_for(lambda: self._error is not None or self._done == self._begun, seconds)
            self.check()
        return ended

    def check(self) -> None:
        """Raise what settling failed with, if it did: a shard without further rows would not hear of it."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Finish what was handed over, for a moment, and end."""
        self._work.put(None)
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                self._settle(*work)
                with self._state:
                    self._done += 1
                    self._state.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised again where somebody waits
            with self._state:
                self._error = error
                self._state.notify_all()
