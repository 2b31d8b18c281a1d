"""A pooler in transaction mode: clients share a few sessions of a server, each for the length of a transaction.

It implements the part of Postgres' protocol that a relay's sessions need: simple and extended queries, no COPY from
clients. Clients need no password; the server's sessions are opened with the connection string.
"""

import contextlib
import os
import queue
import socket
import struct
import threading

import psycopg

_HOST = "127.0.0.1"
_SSL_REQUEST, _GSS_REQUEST = 80877103, 80877104
_STATUSES = ("server_version", "server_encoding", "client_encoding", "standard_conforming_strings", "integer_datetimes")
# The last message of a client before it waits for ReadyForQuery: Query or Sync.
_AWAITED = b"QS"


class Pooler:
    """Listens while its context is entered. `turns`: sessions are used in turn, otherwise the last returned one."""

    def __init__(self, dsn: str, *, sessions: int, turns: bool = False) -> None:
        self._connections = [psycopg.connect(dsn, autocommit=True) for _ in range(sessions)]
        self._free: queue.Queue[socket.socket] = queue.Queue() if turns else queue.LifoQueue()
        self._served = [socket.socket(fileno=os.dup(each.pgconn.socket)) for each in self._connections]
        for served in self._served:
            served.setblocking(True)
            self._free.put(served)
        self._statuses = {name: self._status(name) for name in _STATUSES}
        self._listener = socket.create_server((_HOST, 0))
        self.dsn = psycopg.conninfo.make_conninfo(dsn, host=_HOST, port=self._listener.getsockname()[1])

    def _status(self, name: str) -> str:
        return (self._connections[0].pgconn.parameter_status(name.encode()) or b"").decode()

    def __enter__(self) -> "Pooler":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # A shutdown wakes the thread that waits in `accept`; closing the socket does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for served in self._served:
            served.close()
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            while struct.unpack("!I", _startup(client)[:4])[0] in {_SSL_REQUEST, _GSS_REQUEST}:
                client.sendall(b"N")
            client.sendall(_message(b"R", struct.pack("!I", 0)))
            for name, value in self._statuses.items():
                client.sendall(_message(b"S", f"{name}\0{value}\0".encode()))
            client.sendall(_message(b"K", struct.pack("!II", 1, 1)) + _message(b"Z", b"I"))
            while self._transaction(client):
                pass

    def _transaction(self, client: socket.socket) -> bool:
        """Serve one transaction; False when the client leaves."""
        kind, content = _read(client)
        if kind == b"X":
            return False
        server = self._free.get(timeout=60)
        try:
            while True:
                server.sendall(_message(kind, content))
                if kind in _AWAITED and _answered(server, client):
                    return True
                kind, content = _read(client)
                if kind == b"X":
                    return False
        finally:
            self._free.put(server)


def _answered(server: socket.socket, client: socket.socket) -> bool:
    """Pass the answers on until the server is ready, and return whether no transaction is open."""
    for kind, content in iter(lambda: _read(server), None):
        client.sendall(_message(kind, content))
        if kind == b"Z":
            return content == b"I"
    raise AssertionError("the server closed the connection before it was ready")


def _startup(client: socket.socket) -> bytes:
    (length,) = struct.unpack("!I", _exactly(client, 4))
    return _exactly(client, length - 4)


def _read(end: socket.socket) -> tuple[bytes, bytes]:
    kind = _exactly(end, 1)
    (length,) = struct.unpack("!I", _exactly(end, 4))
    return kind, _exactly(end, length - 4)


def _exactly(end: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = end.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _message(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("!I", len(content) + 4) + content
