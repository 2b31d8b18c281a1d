"""A thread beside the chain of functions that keeps the line and ends the process when it must not go on.

1. A stop from the driver, a broken line, a silent driver, a dead parent, SIGTERM and SIGHUP have the same effect. The
   chain finishes the open batch and begins no other.
2. If the chain has not finished within its grace period, this thread ends the process. The main thread could not: it
   may be in a call that never returns.
3. A kill from the driver, and memory beyond the limit, end the process at once.
4. If a C function keeps the interpreter's lock, this thread cannot run. Then the kernel's timer kills the process,
   see `watchdog`.
"""

import os
import signal
import threading
import time

from thresher.spark.frame_socket import ConnectionBroken, Frame
from thresher.spark.policy import Policy
from thresher.spark.process import resident_bytes, signal_at_parent_death
from thresher.spark.signal_safe_event import SignalSafeEvent
from thresher.spark.worker.fork_guard import ForkGuard
from thresher.spark.worker.line import Line
from thresher.spark.worker.watchdog import WatchdogTimer

_LOOK_SECONDS = 0.25
_JOIN_SECONDS = 10.0
_MOST_LETTERS = 1000
# Exit statuses of a process that ends itself; Spark's logs show them.
KILLED, _OVERDUE, _TOO_BIG, _UNWATCHED = 70, 71, 72, 73


class TaskWatch:
    """Watches one task whose line is open. `start` before the chain runs, `close` after it has ended."""

    def __init__(self, line: Line, policy: Policy, stop_requested: SignalSafeEvent) -> None:
        self._line = line
        self._policy = policy
        self._stop_requested = stop_requested
        self._closing = threading.Event()
        self._heard_at = time.monotonic()
        # The deadline of a stop, after which the process is ended. None before a stop.
        self._stop_by: float | None = None
        # The work in progress, for the message of an overdue stop.
        self._unfinished = "the open batch"
        self._thread = threading.Thread(target=self._run, name="line", daemon=True)

    def start(self) -> None:
        """Install signal handlers and start the thread. Only for the main thread."""
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, lambda which, _frame: self._stop_requested.set(signal.Signals(which).name))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the driver
        ForkGuard(self._line, exit_status=KILLED).install()
        # Spark's daemon forked this process in its only thread, so that SIGHUP reports the daemon's death.
        signal_at_parent_death(signal.SIGHUP)
        self._thread.start()

    def chain_ended(self, error: BaseException | None) -> None:
        """Set a deadline: the functions must be closed within the grace period."""
        after = "" if error is None else f"after {type(error).__name__}: {error}"[:_MOST_LETTERS] + ", "
        self._unfinished = f"{after}closing"
        self._stop_by = self._earliest(self._policy.grace_seconds)

    def close(self) -> None:
        """Send the last figures and close the line. The watchdog's timer runs on, in case PySpark hangs at its end."""
        self._closing.set()
        self._line.wake()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)
        self._line.close()

    def _run(self) -> None:
        try:
            # Longer than any other limit, so that it is the last resort.
            watchdog, seconds = WatchdogTimer(), self._policy.deaf_seconds + self._policy.orphan_seconds
            while not self._closing.is_set():
                watchdog.reset(seconds)
                try:
                    for frame in self._line.receive(_LOOK_SECONDS):
                        self._obey(frame)
                    self._line.send_due()
                except ConnectionBroken as error:
                    self._line.close()
                    self._orphaned(f"the line broke: {error}")
                self._check(time.monotonic())
            self._line.send_final_figures()
        except BaseException as error:  # noqa: BLE001 - a task without a watch must not go on
            self._end(_UNWATCHED, "LineFailed", f"{type(error).__name__}: {error}"[:_MOST_LETTERS])

    def _obey(self, frame: Frame) -> None:
        self._heard_at = time.monotonic()
        match frame.get("is"):
            case "stop":
                self._stop(float(frame["grace"]), "the driver asked")
            case "kill":
                os._exit(KILLED)
            case _:
                pass  # a heartbeat

    def _check(self, now: float) -> None:
        """Stop the task or end the process if one of the limits is reached."""
        if os.getppid() != self._line.parent:
            self._orphaned("its parent is gone")
        if now - self._heard_at > self._policy.deaf_seconds:
            self._orphaned(f"the driver was silent for {self._policy.deaf_seconds:.0f} s")
        limit, size = self._policy.memory_bytes, resident_bytes()
        if limit is not None and size > limit:
            self._end(_TOO_BIG, "MemoryExceeded", f"{size >> 20} MiB are resident, {limit >> 20} MiB allowed")
        if self._stop_requested.is_set() and self._stop_by is None:
            # A signal handler requested the stop and set no deadline: use the deadline of a task without a driver.
            self._stop_by = now + self._policy.orphan_seconds
        if self._stop_by is not None and now > self._stop_by:
            self._end(_OVERDUE, "StopOverdue", f"{self._unfinished} was not finished in time")

    def _stop(self, grace_seconds: float, why: str) -> None:
        self._stop_by = self._earliest(grace_seconds)
        self._stop_requested.set(why)

    def _earliest(self, seconds: float) -> float:
        stop_by = time.monotonic() + seconds
        return stop_by if self._stop_by is None else min(self._stop_by, stop_by)

    def _orphaned(self, why: str) -> None:
        # Called in every round: the earliest deadline stays.
        self._stop(self._policy.orphan_seconds, why)

    def _end(self, status: int, kind: str, message: str) -> None:
        """End the process; tell the driver why, if the line still works."""
        try:
            self._line.send_end_reason(kind, message)
        finally:
            os._exit(status)
