"""The task's end of its line to the driver: a thread that says the task is there and listens for the end of it.

1. Hello: token, shard, attempt, Spark's own task id, process, host and version. The driver welcomes or refuses.
2. From then on beats go both ways; ours carry the figures. Events go up as they happen, stop and kill come down.
3. Stop, a broken line, a silent driver, a lost parent, SIGTERM and SIGHUP all mean: finish the open batch, begin no
   other. Whoever has not finished within its grace is ended here, whatever it does: hence a thread.
4. Kill, and memory beyond the limit, end the process at once.
5. A function that never lets this thread run (a C call that keeps the interpreter's lock) is ended by the kernel: a
   timer that the thread keeps putting off.
6. A child that a function forks is no task: it gets the usual signals back, no line, and does not outlive the task.
"""

import collections
import contextlib
import ctypes
import os
import select
import signal
import socket
import threading
import time
from typing import Any

from thresher import __version__
from thresher.spark.bell import Bell
from thresher.spark.problem import LineRefused, LineUnreachable, VersionMismatch
from thresher.spark.process import look, resident_bytes
from thresher.spark.spec import Spec
from thresher.spark.waker import Waker
from thresher.spark.wire import Frame, Wire, WireBroken
from thresher.spark.worker.deadman import DeadMan
from thresher.spark.worker.shard import Figures

_LOOK_SECONDS = 0.25
_CONNECT_SECONDS = 10.0
_MOST_EVENTS = 1000
_PR_SET_PDEATHSIG = 1
# The exit statuses of a process that ends itself; Spark shows them in its logs.
_KILLED, _OVERDUE, _TOO_BIG, _UNWATCHED = 70, 71, 72, 73
_FAREWELL_SECONDS = 1.0


class LineReplaced(Exception):  # noqa: N818 - an ordinary end
    """The driver has a newer attempt."""


class Line:
    """One task's line. Open it before anything else, `watch` while the chain runs, `close` with the last figures."""

    def __init__(self, spec: Spec, bell: Bell, figures: Figures, *, task: int) -> None:
        self._spec = spec
        self._policy = spec.policy
        self._bell = bell
        self._figures = figures
        self._task = task
        self._parent = os.getppid()
        self._events: collections.deque[Frame] = collections.deque()
        self._dropped = 0
        self._waker = Waker()
        self._closing = threading.Event()
        self._stop_by: float | None = None
        self._forked_by_main, self._forker = True, 0
        # What is not finished, should the time for it be over.
        self._unfinished = "the open batch"
        self._heard = self._beat_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._wire: Wire | None = None

    def open(self) -> None:
        """Say hello and hear the answer. Raises `LineReplaced`, `LineRefused`, `VersionMismatch`, `LineUnreachable`."""
        address = self._spec.address
        try:
            connection = socket.create_connection((address.host, address.port), timeout=_CONNECT_SECONDS)
        except OSError as error:
            raise LineUnreachable(
                f"the driver at {address.host}:{address.port} cannot be reached from {socket.gethostname()} ({error}): "
                "see that spark.driver.host names a host, and the line's port one, that executors can reach"
            ) from error
        self._wire = wire = Wire(connection)
        try:
            wire.send(self._hello())
            answer = self._answer(wire)
        except WireBroken as error:
            raise LineUnreachable(f"the driver hung up on the hello: {error}") from error
        match answer.get("is"), answer.get("why"):
            case "welcome", _:
                self._heard = time.monotonic()
            case "refused", "replaced":
                raise LineReplaced
            case "refused", "version":
                raise VersionMismatch(version_mismatch(str(answer.get("version"))))
            case _:
                raise LineRefused(f"the driver refused this task: {answer.get('why')}")

    def watch(self) -> None:
        """Start the thread. Called in the main thread, which also gets its signals set."""
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, lambda which, _frame: self._bell.ring(signal.Signals(which).name))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is the driver's to handle
        os.register_at_fork(before=self._note_forker, after_in_child=self._leave_to_parent)
        # The daemon forked us in its only thread, so its death is what this reports.
        _tell_of_parents_death(signal.SIGHUP)
        self._thread = threading.Thread(target=self._run, name="line", daemon=True)
        self._thread.start()

    def event(self, name: str, fields: dict[str, Any]) -> None:
        """Pass an event on. Beyond a thousand that wait, the oldest are dropped and counted."""
        if len(self._events) >= _MOST_EVENTS:
            self._events.popleft()
            self._dropped += 1
        self._events.append({"is": "event", "name": name, "fields": fields})
        self._waker.wake()

    def closing(self, error: BaseException | None) -> None:
        """The chain has ended, with this error or none; closing its functions has the grace and no more."""
        self._unfinished = "closing" if error is None else f"after {type(error).__name__}: {error}"[:1000] + ", closing"
        self._stop_by = self._earliest(self._policy.grace_seconds)

    def close(self) -> None:
        """Send the last figures and hang up. The timer stays: what follows is Spark's, and must not take for ever."""
        self._closing.set()
        self._waker.wake()
        if self._thread is not None:
            self._thread.join(_CONNECT_SECONDS)
        self._hang_up()

    def _hello(self) -> Frame:
        # Spark's daemon leads the group of those it forks. If it died meanwhile, our parent is who takes orphans in:
        # none of the driver's business, and by no means to be ended with the workers.
        me, parent = look(os.getpid()), look(self._parent) if self._parent == os.getpgrp() else None
        return {
            "is": "hello",
            "token": self._spec.address.token,
            "version": __version__,
            "shard": self._spec.shard,
            "attempt": self._spec.attempt,
            "task": self._task,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "born": me.born if me else 0,
            "parent": [parent.pid, parent.born] if parent else None,
        }

    def _answer(self, wire: Wire) -> Frame:
        poll = select.poll()
        poll.register(wire, select.POLLIN)
        deadline = time.monotonic() + _CONNECT_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            wire.flush()
            if poll.poll(left * 1000) and (frames := wire.receive()):
                for frame in frames[1:]:
                    self._obey(frame)
                return frames[0]
        raise LineUnreachable(f"the driver did not answer the hello within {_CONNECT_SECONDS:.0f} s")

    def _run(self) -> None:
        try:
            # Later than anybody else would end us.
            dead_man, seconds = DeadMan(), self._policy.deaf_seconds + self._policy.orphan_seconds
            while not self._closing.is_set():
                dead_man.put_off(seconds)
                try:
                    self._converse()
                except WireBroken as error:
                    self._hang_up()
                    self._orphaned(f"the line broke: {error}")
                self._judge(time.monotonic())
            self._say_farewell()
        except BaseException as error:  # noqa: BLE001 - a task that nobody watches must not go on
            self._end(_UNWATCHED, "LineFailed", f"{type(error).__name__}: {error}"[:1000])

    def _converse(self) -> None:
        """Wait for something to hear or to say, not long, and hear and say it."""
        wire = self._wire
        poll = select.poll()
        poll.register(self._waker, select.POLLIN)
        if wire is not None:
            poll.register(wire, select.POLLIN | (select.POLLOUT if wire.unsent else 0))
        ready = {descriptor for descriptor, _ in poll.poll(_LOOK_SECONDS * 1000)}
        self._waker.drain()
        if wire is not None:
            if wire.fileno() in ready:
                for frame in wire.receive():
                    self._obey(frame)
            self._speak(wire)

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _obey(self, frame: Frame) -> None:
        self._heard = time.monotonic()
        match frame.get("is"):
            case "stop":
                self._stop(float(frame["grace"]), "the driver asked")
            case "kill":
                os._exit(_KILLED)
            case _:
                pass  # a beat

    def _speak(self, wire: Wire) -> None:
        wire.flush()
        while self._events and not wire.unsent:
            wire.send(self._events.popleft())
        now = time.monotonic()
        if now >= self._beat_at and not wire.unsent:
            self._beat_at = now + self._policy.beat_seconds
            wire.send({"is": "beat", **self._account()})

    def _account(self) -> Frame:
        # Copied in one step each, so that the main thread can go on counting.
        counts, gauges = dict(self._figures.counts), dict(self._figures.gauges)
        return {"counts": counts, "gauges": gauges, "resident": resident_bytes(), "dropped": self._dropped}

    def _judge(self, now: float) -> None:
        """Decide whether to go on; what ends the process ends it here."""
        if os.getppid() != self._parent:
            self._orphaned("its parent is gone")
        if now - self._heard > self._policy.deaf_seconds:
            self._orphaned(f"the driver was silent for {self._policy.deaf_seconds:.0f} s")
        limit, size = self._policy.memory_bytes, resident_bytes()
        if limit is not None and size > limit:
            self._end(_TOO_BIG, "MemoryExceeded", f"{size >> 20} MiB are resident, {limit >> 20} MiB allowed")
        if self._bell.rung and self._stop_by is None:
            # A signal rang it. Nobody set a bound, so it has an orphan's.
            self._stop_by = now + self._policy.orphan_seconds
        if self._stop_by is not None and now > self._stop_by:
            self._end(_OVERDUE, "StopOverdue", f"{self._unfinished} was not finished in time")

    def _stop(self, grace_seconds: float, why: str) -> None:
        self._stop_by = self._earliest(grace_seconds)
        self._bell.ring(why)

    def _earliest(self, seconds: float) -> float:
        stop_by = time.monotonic() + seconds
        return stop_by if self._stop_by is None else min(self._stop_by, stop_by)

    def _orphaned(self, why: str) -> None:
        # Said again and again it changes nothing: the earliest bound stays.
        self._stop(self._policy.orphan_seconds, why)

    def _end(self, status: int, kind: str, message: str) -> None:
        """End the process, with last words if there is somebody to hear them."""
        try:
            if self._wire is not None:
                self._wire.send({"is": "last words", "kind": kind, "message": message})
                self._flush(self._wire)
        finally:
            os._exit(status)

    def _flush(self, wire: Wire) -> None:
        """Give the other end a second to take what was said."""
        poll = select.poll()
        poll.register(wire, select.POLLOUT)
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while wire.unsent and (left := deadline - time.monotonic()) > 0:
            poll.poll(left * 1000)
            wire.flush()

    def _note_forker(self) -> None:
        self._forked_by_main = threading.current_thread() is threading.main_thread()
        self._forker = os.getpid()

    def _leave_to_parent(self) -> None:
        """In a forked child: none of this is ours."""
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        if self._forked_by_main:
            # It is told of the end of the thread that forked it, which for any other thread means nothing.
            _tell_of_parents_death(signal.SIGKILL)
            if os.getppid() != self._forker:
                os._exit(_KILLED)  # it died before we could be told
        if self._wire is not None:
            self._wire.close()

    def _say_farewell(self) -> None:
        if self._wire is not None:
            with contextlib.suppress(WireBroken):
                while self._events:
                    self._wire.send(self._events.popleft())
                self._wire.send({"is": "farewell", **self._account()})
                self._flush(self._wire)


def _tell_of_parents_death(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def version_mismatch(driver: str) -> str:
    """Say which version is where, and what to do."""
    return (
        f"the task on {socket.gethostname()} has thresher {__version__}, the driver {driver}: "
        "give the executors the driver's environment"
    )
