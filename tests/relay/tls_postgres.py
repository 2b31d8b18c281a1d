"""TLS before a Postgres that has none: a proxy on loopback that accepts encrypted sessions alone.

Its certificate is for the name `localhost`, and signed by itself.
"""

import contextlib
import selectors
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

from psycopg import conninfo

_PEM = Path(__file__).with_name("tls")
AUTHORITY = _PEM / "certificate.pem"
_SSL_REQUEST = (8).to_bytes(4) + (80877103).to_bytes(4)


class TlsPostgres:
    """The proxy. `plain` counts the sessions that asked for no TLS: they were refused."""

    def __init__(self, dsn: str) -> None:
        parts = conninfo.conninfo_to_dict(dsn)
        self._dsn, self._host, self._port = dsn, str(parts["host"]), int(parts.get("port") or 5432)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(AUTHORITY, _PEM / "key.pem")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.plain = self.encrypted = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def dsn(self, **changes: str) -> str:
        """The connection string through the proxy."""
        port = self._listener.getsockname()[1]
        return conninfo.make_conninfo(self._dsn, host="localhost", port=port, **changes)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            if client.recv(8, socket.MSG_WAITALL) != _SSL_REQUEST:
                self.plain += 1
                return
            client.sendall(b"S")
            with self._context.wrap_socket(client, server_side=True) as near, self._server() as far:
                self.encrypted += 1
                _pass_on(near, far)

    def _server(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, self._port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port}")
        return server


def _pass_on(near: ssl.SSLSocket, far: socket.socket) -> None:
    with selectors.DefaultSelector() as ready:
        ready.register(near, selectors.EVENT_READ, far)
        ready.register(far, selectors.EVENT_READ, near)
        while True:
            for key, _ in ready.select():
                source = near if key.fileobj is near else far
                data = source.recv(65_536)
                # What TLS has decrypted already is not announced again.
                while source is near and near.pending():
                    data += near.recv(65_536)
                if not data:
                    return
                key.data.sendall(data)


@contextlib.contextmanager
def tls_postgres(dsn: str) -> Iterator[TlsPostgres]:
    proxy = TlsPostgres(dsn)
    try:
        yield proxy
    finally:
        proxy.close()
