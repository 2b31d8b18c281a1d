"""The server of all lines: a line is the TCP connection of one task to the driver.

1. A new connection has five seconds and 4 KiB for its hello.
2. A wrong token closes the connection without an answer. A task of another Thresher version is refused, and learns the
   driver's version. The handler decides whether the task is the newest of its shard.
3. Welcomed tasks get a heartbeat from `beat`. Their frames go to the handler.
"""

import errno
import hmac
import logging
import selectors
import socket
import time
from typing import Protocol

from thresher import __version__
from thresher.core.errors import shorten
from thresher.spark.driver.event_loop import EventLoop
from thresher.spark.driver.task_connection import TaskConnection, TaskIdentity
from thresher.spark.frame_socket import ConnectionBroken, Frame, FrameSocket
from thresher.spark.task_spec import DriverAddress

logger = logging.getLogger(__name__)

_HELLO_SECONDS = 5.0
_HELLO_BYTES = 4096
# The most connections whose hello was not accepted yet.
_MOST_UNWELCOMED = 256
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

    def __init__(
        self, loop: EventLoop, handler: LineHandler, *, bind: str, advertise: str, port: int, token: str
    ) -> None:
        found = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self._listener = socket.create_server(found[0][4][:2], family=found[0][0], backlog=1024)
        self._listener.setblocking(False)
        self._loop = loop
        self._handler = handler
        self._connections: set[TaskConnection] = set()
        # Whether accepting is paused until the next heartbeat.
        self._paused = False
        self.address = DriverAddress(host=advertise, port=self._listener.getsockname()[1], token=token)
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

    def close(self) -> None:
        """Close every connection and stop listening."""
        for connection in list(self._connections):
            self._drop(connection)
        self._loop.unwatch(self._listener)
        self._listener.close()

    def read_all(self, connection: TaskConnection) -> None:
        """Handle every frame that has arrived on a connection, before it is closed."""
        while connection in self._connections and self._serve(connection, selectors.EVENT_READ):
            pass

    def _accept(self, _events: int) -> None:
        try:
            accepted, _ = self._listener.accept()
        except OSError as error:
            if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                # The listener stays ready, so that retrying now would be a busy loop: retry at the next heartbeat.
                logger.warning("no connection of a task can be accepted until the next heartbeat: %s", error)
                self._loop.unwatch(self._listener)
                self._paused = True
            return
        unwelcomed = [connection for connection in self._connections if not connection.welcomed]
        if len(unwelcomed) >= _MOST_UNWELCOMED:
            # A task says hello at once, so that the oldest of these connections is the least likely to be a task's.
            self._drop(min(unwelcomed, key=lambda connection: connection.connected_at))
        connection = TaskConnection(FrameSocket(accepted, most_bytes=_HELLO_BYTES), self._drop)
        self._connections.add(connection)
        self._watch(connection)

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
            if connection.identity is None:
                self._hello(connection, frame)
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

    def _hello(self, connection: TaskConnection, frame: Frame) -> None:
        token = frame.get("token")
        if not isinstance(token, str) or not hmac.compare_digest(
            token.encode(errors="surrogatepass"), self.address.token.encode()
        ):
            logger.warning("a connection without the token of this driver was closed")
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
            self._loop.unwatch(connection.socket)
            connection.socket.close()
            if connection.welcomed and connection.identity is not None:
                self._handler.on_line_closed(connection, connection.identity)
