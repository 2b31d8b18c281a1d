"""The driver's end of one line: a connected task and the identity that it gave in its hello."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from thresher import __version__
from thresher.spark.frame_socket import ConnectionBroken, Frame, FrameSocket
from thresher.spark.process import Process

_WELCOMED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """A task as its hello describes it."""

    shard: int
    attempt: int
    # Spark's task attempt id.
    task: int
    host: str
    process: Process
    # Spark's worker daemon, which forked the process.
    parent: Process | None

    @classmethod
    def of(cls, hello: Frame) -> "TaskIdentity":
        """Read a hello. Raises `LookupError`, `TypeError`, `ValueError` or `ArithmeticError` on a malformed one."""
        parent = hello["parent"]
        return cls(
            shard=int(hello["shard"]),
            attempt=int(hello["attempt"]),
            task=int(hello["task"]),
            host=str(hello["host"]),
            process=Process(pid=int(hello["pid"]), born=int(hello["born"])),
            parent=Process(pid=int(parent[0]), born=int(parent[1])) if parent else None,
        )


class TaskConnection:
    """A connection to the line server. Its identity is None until the hello; `drop` closes it."""

    def __init__(self, socket: FrameSocket, peer: str, drop: Callable[["TaskConnection"], None]) -> None:
        self.identity: TaskIdentity | None = None
        # The address that it comes from.
        self.peer = peer
        # The nonces of both ends, once the other end has knocked with a proof that it has the key.
        self.nonces: tuple[str, str] | None = None
        self.welcomed = False
        self.connected_at = time.monotonic()
        self.socket = socket
        self._drop = drop

    def welcome(self) -> None:
        """Accept the hello, and longer frames from now on."""
        self.welcomed = True
        self.socket.most_bytes = _WELCOMED_BYTES
        self.send({"is": "welcome"})

    def refuse(self, why: str) -> None:
        """Refuse the hello with a reason, and close."""
        self.send({"is": "refused", "why": why, "version": __version__})
        self.close()

    def send(self, frame: Frame) -> None:
        """Send a frame. A broken connection is noticed at the next read, not here."""
        with contextlib.suppress(ConnectionBroken):
            self.socket.send(frame)

    def kill(self) -> None:
        """Tell the task to end at once, and close."""
        self.send({"is": "kill"})
        self.close()

    def close(self) -> None:
        """Close without a message, which ends the task: to it, the line broke."""
        self._drop(self)
