"""The server of all lines: a line is the connection of one task to the driver, a Unix socket or TLS over TCP.

1. A new connection has five seconds and 4 KiB to prove that it has the key (`line_key`), and to say hello. Without a
   proof it is closed without an answer.
2. Of 256 connections without a proof, the next one replaces one at random, of the address that has most of them. A
   stranger therefore never keeps out the tasks of other addresses, and those of its own only by luck: they try again.
3. A task of another Thresher version is refused, and learns the driver's version. The handler decides whether the task
   is the newest of its shard.
4. Welcomed tasks get a heartbeat from `beat`. Their frames go to the handler.
"""

import collections
import contextlib
import errno
import logging
import secrets
import selectors
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from thresher import __version__
from thresher.core.errors import shorten
from thresher.spark.driver.event_loop import EventLoop
from thresher.spark.driver.task_connection import TaskConnection, TaskIdentity
from thresher.spark.frame_socket import ConnectionBroken, Frame, FrameSocket
from thresher.spark.line_key import CHALLENGE, HELLO, KNOCK, LineKey, make_nonce
from thresher.spark.task_spec import DriverAddress
from thresher.spark.tls import Certificate, TlsEnd

logger = logging.getLogger(__name__)

_HELLO_SECONDS = 5.0
_HELLO_BYTES = 4096
# The most connections that have not proved yet that they have the key.
_MOST_UNPROVEN = 256
# The most connections that have proved it and were not welcomed yet: a recorded knock can be sent again and again.
_MOST_KNOCKED = 2048
# The most connections to accept before the lines of welcomed tasks are served again.
_MOST_AT_ONCE = 64
_STRANGERS_LOGGED_SECONDS = 60.0
_BACKLOG = 1024
# No further heartbeats are queued for a task that has left this many bytes unread.
_MOST_UNSENT = 1 << 20
_MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError)


class LineHandler(Protocol):
    """Decides about tasks and takes their frames."""

    def on_hello(self, connection: TaskConnection, identity: TaskIdentity) -> None:
        """Welcome or refuse the task."""

    def on_frame(self, connection: TaskConnection, identity: TaskIdentity, frame: Frame) -> None:
        """Take a frame of a welcomed task."""

    def on_line_closed(self, connection: TaskConnection, identity: TaskIdentity) -> None:
        """Note that a welcomed task's line is closed."""


class LineServer:
    """All lines of one engine. Used in the event loop's thread only."""

    def __init__(self, loop: EventLoop, handler: LineHandler, *, place: "LinePlace", key: LineKey) -> None:
        self._listener, advertised = place.listen()
        self._listener.setblocking(False)
        self._loop = loop
        self._handler = handler
        self._connections: set[TaskConnection] = set()
        # Whether accepting is paused until the next heartbeat.
        self._paused = False
        self._strangers, self._logged_at = 0, -_STRANGERS_LOGGED_SECONDS
        certificate = place.certificate
        self._tls: ssl.SSLContext | None = certificate.context() if certificate is not None else None
        self.address = DriverAddress(
            place=advertised, key=key, certificate=certificate.public if certificate is not None else None
        )
        loop.watch(self._listener, selectors.EVENT_READ, self._accept)

    def beat(self) -> None:
        """Send a heartbeat to every welcomed task, and close connections whose hello is overdue."""
        now = time.monotonic()
        if self._paused:
            self._paused = False
            self._loop.watch(self._listener, selectors.EVENT_READ, self._accept)
        for connection in list(self._connections):
            if connection.welcomed:
                if connection.socket.unsent < _MOST_UNSENT:
                    connection.send({"is": "beat"})
                self._watch(connection)
            elif now - connection.connected_at > _HELLO_SECONDS:
                self._drop(connection)
        if self._strangers and now - self._logged_at >= _STRANGERS_LOGGED_SECONDS:
            logger.warning("%d connections without this driver's key were closed", self._strangers)
            self._strangers, self._logged_at = 0, now

    def close(self) -> None:
        """Close every connection and stop listening."""
        for connection in list(self._connections):
            self._drop(connection)
        self._loop.unwatch(self._listener)
        self._listener.close()
        if isinstance(self.address.place, str):
            Path(self.address.place).unlink(missing_ok=True)

    def read_all(self, connection: TaskConnection) -> None:
        """Handle every frame that has arrived on a connection, before it is closed."""
        while connection in self._connections and self._serve(connection, selectors.EVENT_READ):
            pass

    def _accept(self, _events: int) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                accepted, peer = self._listener.accept()
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    # The listener stays ready, so that retrying now would be a busy loop: retry at the next heartbeat.
                    logger.warning("no connection of a task can be accepted until the next heartbeat: %s", error)
                    self._loop.unwatch(self._listener)
                    self._paused = True
                return
            self._make_room()
            connection = TaskConnection(
                FrameSocket(accepted, most_bytes=_HELLO_BYTES), peer[0] if peer else "", self._drop
            )
            self._connections.add(connection)
            self._watch(connection)

    def _make_room(self) -> None:
        """Close a connection if too many wait for their hello: one that has proved nothing, or the oldest of others."""
        waiting = [connection for connection in self._connections if not connection.welcomed]
        unproven = [connection for connection in waiting if connection.nonces is None]
        if len(unproven) >= _MOST_UNPROVEN:
            ((busiest, _),) = collections.Counter(connection.peer for connection in unproven).most_common(1)
            self._drop(secrets.choice([connection for connection in unproven if connection.peer == busiest]))
        if len(waiting) - len(unproven) >= _MOST_KNOCKED:
            self._drop(min(set(waiting) - set(unproven), key=lambda connection: connection.connected_at))

    def _watch(self, connection: TaskConnection) -> None:
        if connection in self._connections:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.socket.unsent else 0)
            self._loop.watch(connection.socket, events, lambda ready: self._serve(connection, ready))

    def _serve(self, connection: TaskConnection, ready: int) -> bool:
        """Send queued bytes and handle arrived frames; return whether more may have arrived."""
        try:
            connection.socket.flush()
            frames = connection.socket.receive() if ready & selectors.EVENT_READ else []
        except ConnectionBroken as error:
            logger.debug("line broken", extra={"why": str(error)})
            self._drop(connection)
            return False
        for frame in frames:
            if connection not in self._connections:
                return False
            if connection.nonces is None:
                self._knock(connection, frame)
            elif connection.identity is None:
                self._hello(connection, connection.nonces, frame)
            elif connection.welcomed:
                self._frame(connection, connection.identity, frame)
        self._watch(connection)
        return connection.socket.received_bytes

    def _frame(self, connection: TaskConnection, identity: TaskIdentity, frame: Frame) -> None:
        try:
            self._handler.on_frame(connection, identity, frame)
        except _MALFORMED:
            logger.warning("shard %d sent a malformed frame, and its connection was closed", identity.shard)
            self._drop(connection)

    def _knock(self, connection: TaskConnection, frame: Frame) -> None:
        """Answer a proof of the key with our own. The first frame of a connection."""
        key, theirs, ours = self.address.key, frame.get("nonce"), make_nonce()
        if frame.get("is") != KNOCK or not key.proves(frame.get("proof"), KNOCK, theirs):
            self._drop(connection)
            return
        connection.nonces = (str(theirs), ours)
        connection.send({"is": CHALLENGE, "nonce": ours, "proof": key.proof(CHALLENGE, *connection.nonces)})
        if self._tls is not None:
            try:
                connection.socket.encrypt_by(TlsEnd(self._tls, server=True))
            except ConnectionBroken:
                self._drop(connection)

    def _hello(self, connection: TaskConnection, nonces: tuple[str, str], frame: Frame) -> None:
        if not self.address.key.proves(frame.get("proof"), HELLO, *nonces):
            self._strangers += 1
            self._drop(connection)
        elif frame.get("version") != __version__:
            logger.warning("a task of version %s was refused", shorten(frame.get("version")))
            connection.refuse("version")
        else:
            try:
                connection.identity = TaskIdentity.of(frame)
            except _MALFORMED:
                connection.refuse("its hello is malformed")
            else:
                self._handler.on_hello(connection, connection.identity)

    def _drop(self, connection: TaskConnection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._strangers += connection.nonces is None
            self._loop.unwatch(connection.socket)
            connection.socket.close()
            if connection.welcomed and connection.identity is not None:
                self._handler.on_line_closed(connection, connection.identity)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePlace:
    """Where lines arrive: a Unix socket in a directory that no other user can enter, or TCP with a certificate."""

    directory: Path | None = None
    bind: str = ""
    advertise: str = ""
    port: int = 0
    certificate: Certificate | None = None

    def listen(self) -> tuple[socket.socket, str | tuple[str, int]]:
        """Return a listening socket, and the place to which tasks connect. Raises `OSError`."""
        if self.directory is not None:
            path = str(self.directory / f"line-{secrets.token_hex(4)}")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.ExitStack() as on_error:
                on_error.callback(listener.close)
                listener.bind(path)
                listener.listen(_BACKLOG)
                on_error.pop_all()
            return listener, path
        found = socket.getaddrinfo(self.bind, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listener = socket.create_server(found[0][4][:2], family=found[0][0], backlog=_BACKLOG)
        return listener, (self.advertise, listener.getsockname()[1])
