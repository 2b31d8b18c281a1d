"""The task's end of its line, the connection to the driver.

1. Task and driver prove to each other that they have the key (`line_key`). Hello: version, shard, attempt, Spark's task
   attempt id, host, process and parent. The driver welcomes or refuses the task.
2. Heartbeats go both ways from then on. The task's heartbeats carry its figures and for how long each running step has
   run. Its events are sent as they happen.
3. The driver sends `stop` and `kill`, which `task_watch` obeys.
4. At the end the task sends its last figures, or the reason why it ends its own process.

A full socket never blocks the task: events wait, and beyond a thousand the oldest are dropped and counted.
"""

import collections
import contextlib
import os
import select
import socket
import time
from typing import Any

from thresher import __version__
from thresher.spark.frame_socket import ConnectionBroken, Frame, FrameSocket
from thresher.spark.line_key import CHALLENGE, HELLO, KNOCK, make_nonce
from thresher.spark.problem import LineRefused, LineUnreachable, VersionMismatch
from thresher.spark.process import find_process, resident_bytes
from thresher.spark.task_spec import TaskSpec
from thresher.spark.tls import TlsEnd, task_context
from thresher.spark.wakeup_pipe import WakeupPipe
from thresher.spark.worker.running_steps import RunningSteps
from thresher.spark.worker.shard import Figures

_CONNECT_SECONDS = 10.0
# A connection that breaks, or stays without an answer for this long, before the driver has proved itself is replaced.
_CHALLENGE_SECONDS, _AGAIN_SECONDS = 3.0, 0.05
# The longest frame of a driver that has not welcomed the task yet.
_ANSWER_BYTES = 4096
_WELCOMED_BYTES = 1 << 20
_MOST_EVENTS = 1000
_FAREWELL_SECONDS = 1.0


class LineReplaced(Exception):  # noqa: N818 - an ordinary end
    """The driver has a newer task for this shard."""


class Line:
    """One task's line. `event` and `wake` are for the main thread; after `open`, the rest is for the watch's thread."""

    def __init__(self, spec: TaskSpec, figures: Figures, *, task: int, steps: RunningSteps | None = None) -> None:
        self._spec = spec
        self._figures = figures
        self._steps = steps or RunningSteps()
        self._task = task
        # Read at once: if the daemon dies later, the parent's id changes.
        self.parent = os.getppid()
        self._events: collections.deque[Frame] = collections.deque()
        self._dropped = 0
        self._wakeup = WakeupPipe()
        self._socket: FrameSocket | None = None
        # Frames that arrived together with the answer to the hello.
        self._early: list[Frame] = []
        self._beat_at = time.monotonic()

    def open(self) -> None:
        """Connect and say hello. Raises `LineReplaced`, `LineRefused`, `VersionMismatch` or `LineUnreachable`."""
        try:
            self._be_welcomed()
        except BaseException:
            self.close()
            raise

    def _be_welcomed(self) -> None:
        self._socket, nonces = self._meet(time.monotonic() + _CONNECT_SECONDS)
        try:
            self._socket.send(self.hello() | {"proof": self._spec.address.key.proof(HELLO, *nonces)})
            answer = self._answer(self._socket, time.monotonic() + _CONNECT_SECONDS)
        except (ConnectionBroken, TimeoutError) as error:
            raise LineUnreachable(f"no answer of the driver to the hello: {error}") from error
        match answer.get("is"), answer.get("why"):
            case "welcome", _:
                self._socket.most_bytes = _WELCOMED_BYTES
            case "refused", "replaced":
                raise LineReplaced
            case "refused", "version":
                raise VersionMismatch(version_mismatch(str(answer.get("version"))))
            case _:
                raise LineRefused(f"the driver refused this task: {answer.get('why')}")

    def _meet(self, deadline: float) -> tuple[FrameSocket, tuple[str, str]]:
        """Return a connection to a driver that has proved itself, and the nonces of both.

        A driver whom strangers flood may close a connection that has not proved anything yet: then try again.
        """
        while True:
            opened = FrameSocket(self._connect(), most_bytes=_ANSWER_BYTES)
            try:
                return opened, self._challenged(opened, min(deadline, time.monotonic() + _CHALLENGE_SECONDS))
            except (ConnectionBroken, TimeoutError) as error:
                opened.close()
                if time.monotonic() + _AGAIN_SECONDS >= deadline:
                    raise LineUnreachable(
                        f"at {self._spec.address}, no driver proved that it is this task's: {error}"
                    ) from error
                time.sleep(_AGAIN_SECONDS)

    def _connect(self) -> socket.socket:
        address = self._spec.address
        try:
            if not isinstance(address.place, str):
                return socket.create_connection(address.place, timeout=_CONNECT_SECONDS)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.connect(address.place)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise LineUnreachable(
                f"the driver at {address} cannot be reached from {socket.gethostname()} ({error}): "
                "set spark.driver.host and SparkOptions.line_port to a host and a port that executors can reach"
            ) from error
        return connection

    def _challenged(self, opened: FrameSocket, deadline: float) -> tuple[str, str]:
        """Knock, and return both nonces once the driver has proved that it has the key."""
        address, ours = self._spec.address, make_nonce()
        opened.send({"is": KNOCK, "nonce": ours, "proof": address.key.proof(KNOCK, ours)})
        answer = self._answer(opened, deadline)
        theirs = answer.get("nonce")
        if answer.get("is") != CHALLENGE or not address.key.proves(answer.get("proof"), CHALLENGE, ours, theirs):
            raise ConnectionBroken("what listens there does not have the key")
        if address.certificate is not None:
            opened.encrypt_by(TlsEnd(task_context(address.certificate), server=False))
        return ours, str(theirs)

    def event(self, name: str, fields: dict[str, Any]) -> None:
        """Queue an event for the driver."""
        if len(self._events) >= _MOST_EVENTS:
            self._events.popleft()
            self._dropped += 1
        self._events.append({"is": "event", "name": name, "fields": fields})
        self.wake()

    def wake(self) -> None:
        """Let `receive` return at once."""
        self._wakeup.wake()

    def receive(self, seconds: float) -> list[Frame]:
        """Wait at most `seconds` for frames or for something to send; return the frames. Raises `ConnectionBroken`."""
        opened = self._socket
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        if opened is not None:
            poll.register(opened, select.POLLIN | (select.POLLOUT if opened.unsent else 0))
        ready = {descriptor for descriptor, _ in poll.poll(0 if self._early else seconds * 1000)}
        self._wakeup.drain()
        frames, self._early = self._early, []
        return frames + opened.receive() if opened is not None and opened.fileno() in ready else frames

    def send_due(self) -> None:
        """Send waiting events, and a heartbeat if its time has come. Raises `ConnectionBroken`."""
        opened = self._socket
        if opened is None:
            return
        opened.flush()
        while self._events and not opened.unsent:
            opened.send(self._events.popleft())
        now = time.monotonic()
        if now >= self._beat_at and not opened.unsent:
            self._beat_at = now + self._spec.policy.beat_seconds
            opened.send({"is": "beat", **self._report()})

    def send_end_reason(self, kind: str, message: str) -> None:
        """Tell the driver why the task ends its own process."""
        if self._socket is not None:
            self._socket.send({"is": "last words", "kind": kind, "message": message})
            self._flush(self._socket)

    def send_final_figures(self) -> None:
        """Send the waiting events and the last figures."""
        if self._socket is not None:
            with contextlib.suppress(ConnectionBroken):
                while self._events:
                    self._socket.send(self._events.popleft())
                self._socket.send({"is": "farewell", **self._report()})
                self._flush(self._socket)

    def close(self) -> None:
        """Close the connection. Harmless when repeated."""
        opened, self._socket = self._socket, None
        if opened is not None:
            opened.close()

    def close_in_child(self) -> None:
        """Close a forked child's copy of the connection; the parent's stays open."""
        if self._socket is not None:
            self._socket.close()

    def hello(self) -> Frame:
        """Return the first frame of a connection, which tells the driver the task and its processes."""
        # Spark's daemon leads the process group of its workers. After its death, the parent is an unrelated process
        # that adopts orphans. It is not reported, because the driver may kill the processes that a hello names.
        process, parent = find_process(os.getpid()), find_process(self.parent) if self.parent == os.getpgrp() else None
        return {
            "is": "hello",
            "version": __version__,
            "shard": self._spec.shard,
            "attempt": self._spec.attempt,
            "task": self._task,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "born": process.born if process else 0,
            "parent": [parent.pid, parent.born] if parent else None,
        }

    def _answer(self, opened: FrameSocket, deadline: float) -> Frame:
        """Return the next frame. Raises `ConnectionBroken`, or `TimeoutError` at the deadline."""
        while (left := deadline - time.monotonic()) > 0:
            opened.flush()
            poll = select.poll()
            poll.register(opened, select.POLLIN | (select.POLLOUT if opened.unsent else 0))
            if poll.poll(left * 1000) and (frames := opened.receive()):
                self._early = frames[1:]
                return frames[0]
        raise TimeoutError("it did not answer in time")

    def _report(self) -> Frame:
        # Each copy is atomic under the interpreter's lock, so that the main thread can go on counting.
        counts, gauges = dict(self._figures.counts), dict(self._figures.gauges)
        return {
            "counts": counts,
            "gauges": gauges,
            "steps": self._steps.ages(),
            "notes": self._figures.current_notes(),
            "resident": resident_bytes(),
            "dropped": self._dropped,
        }

    def _flush(self, opened: FrameSocket) -> None:
        """Wait until the socket has accepted all bytes, for a second at most."""
        poll = select.poll()
        poll.register(opened, select.POLLOUT)
        deadline = time.monotonic() + _FAREWELL_SECONDS
        while opened.unsent and (left := deadline - time.monotonic()) > 0:
            poll.poll(left * 1000)
            opened.flush()


def version_mismatch(driver: str) -> str:
    """Return a message that names both versions and the remedy."""
    return (
        f"the task on {socket.gethostname()} has thresher {__version__}, the driver {driver}: "
        "give the executors the driver's environment"
    )
