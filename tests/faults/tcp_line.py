"""A TCP proxy that a test can hold: connections are accepted and kept, and no data passes."""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psycopg

_CHUNK = 65_536
_END_SECONDS = 10.0


class TcpLine:
    """Forwards connections on loopback to one server while its context is entered."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._flowing = threading.Event()
        self._flowing.set()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        # The bytes that each client has sent, in the order of the connections.
        self.sent: list[bytearray] = []

    def hold(self) -> None:
        """Let nothing pass in either direction: the server seems to accept, and never to answer."""
        self._flowing.clear()

    def release(self) -> None:
        """Let everything pass again, including held data."""
        self._flowing.set()

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A shutdown wakes the thread that waits in `accept`; closing the socket does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flowing.set()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(_END_SECONDS)
        for end in self._ends:
            end.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments, name="tcp-line", daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._ends.append(client)
                server = socket.create_connection(self._upstream)
                self._ends.append(server)
                self.sent.append(bytearray())
                for source, target, seen in ((client, server, self.sent[-1]), (server, client, bytearray())):
                    self._start(self._carry, source, target, seen)

    def _carry(self, source: socket.socket, target: socket.socket, seen: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                seen += data
                self._flowing.wait()
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def line_to(dsn: str) -> TcpLine:
    """Return a proxy to the database of a connection string."""
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    return TcpLine(str(given["host"]), int(str(given["port"])))


def through(line: TcpLine, dsn: str) -> str:
    """Return the connection string through a proxy, with a short connect time-out."""
    return psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=line.port, sslmode="disable", connect_timeout=2)


def messages_of(sent: bytes) -> list[str]:
    """Return the types of the messages that a Postgres client has sent, after the startup message, which has none."""
    found, place = [], int.from_bytes(sent[:4])
    while place < len(sent):
        found.append(chr(sent[place]))
        place += 1 + int.from_bytes(sent[place + 1 : place + 5])
    return found
