"""Settles progress records in a thread of its own, while the next transaction is filled."""

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

P = TypeVar("P")


class Settler(Generic[P]):
    """Settles records one after another. After a failure nothing more is settled, and `wait` and `check` raise it."""

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
        """Add a committed record to the queue."""
        self._begun += 1
        self._work.put((progress, recovering))

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until every queued record is settled durably, at most this long, and return whether it is."""
        with self._state:
            ended = self._state.wait_for(lambda: self._error is not None or self._done == self._begun, seconds)
            self.check()
        return ended

    def check(self) -> None:
        """Raise the error that ended the settling, if any. For a shard without rows, which never calls `wait`."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Settle the queued records, for at most 5 s, and end."""
        self._work.put(None)
        self._thread.join(5.0)

    def _run(self) -> None:
        try:
            while (work := self._work.get()) is not None:
                self._settle(*work)
                with self._state:
                    self._done += 1
                    self._state.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised again by `wait` and `check`
            with self._state:
                self._error = error
                self._state.notify_all()
