"""Holds the one leadership that a process has at a time: runs it in a thread, and ends it.

The service's own thread begins and ends leaderships; any thread may read the state of the current one. `end` returns
when nothing of the leadership is left running, so that leaderships of one process never overlap.
"""

import threading
import time
from collections.abc import Callable

from thresher.service.health import Role
from thresher.service.leading import Leading
from thresher.spark.driver.snapshot import Snapshot

_LOOK_SECONDS = 0.05


class LeadershipThread:
    """A leadership that runs in a thread."""

    def __init__(self, leading: Leading) -> None:
        self.leading = leading
        self.error: BaseException | None = None
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.leading.run()
        except BaseException as error:  # noqa: BLE001 - raised by the service's own thread
            self.error = error

    @property
    def over(self) -> bool:
        """Whether the leadership has ended, for any reason."""
        return not self._thread.is_alive()

    @property
    def lasted(self) -> float:
        """For how many seconds the leadership has lasted."""
        return time.monotonic() - self._began

    def end(self, *, forced: bool, seconds: float | None, hurry: Callable[[], bool]) -> None:
        """End the leadership gracefully; by force if `forced`, after `seconds`, or as soon as `hurry` returns true."""
        deadline = None if seconds is None else time.monotonic() + seconds
        if not forced:
            self.leading.request_stop()
        while not self.over:
            if forced or hurry() or (deadline is not None and time.monotonic() >= deadline):
                self.leading.abandon()
                self._thread.join()
                return
            self._thread.join(_LOOK_SECONDS)


class LeaderSlot:
    """Empty, or with one leadership. Its properties and `snapshot` are safe in any thread."""

    def __init__(self) -> None:
        self._current: LeadershipThread | None = None
        self._last: Snapshot | None = None

    @property
    def current(self) -> LeadershipThread | None:
        """The leadership with its thread, which may have ended."""
        return self._current

    @property
    def leading(self) -> Leading | None:
        """The leadership."""
        current = self._current
        return None if current is None else current.leading

    @property
    def role(self) -> Role:
        """The role of the process, unless the service is stopping."""
        current = self._current
        return Role.STANDBY if current is None or current.over else current.leading.role

    def snapshot(self) -> Snapshot | None:
        """Return the engine's snapshot, or its last one from the latest leadership; None if this process never led."""
        leading = self.leading
        return (None if leading is None else leading.snapshot()) or self._last

    def begin(self, leading: Leading) -> None:
        """Run a leadership. The slot must be empty."""
        self._current = LeadershipThread(leading)

    def end(self, *, forced: bool, seconds: float | None, hurry: Callable[[], bool]) -> BaseException | None:
        """End the leadership if there is one; return its error when nothing of it is left running."""
        current = self._current
        if current is None:
            return None
        current.end(forced=forced, seconds=seconds, hurry=hurry)
        self._last = current.leading.snapshot() or self._last
        self._current = None
        return current.error
