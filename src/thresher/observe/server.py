"""A small HTTP server for the pages of a process: status, metrics and health probes.

It listens on loopback unless the configuration says otherwise. It has neither authentication nor TLS, and its pages
hold no secret. Put a proxy or a network policy in front of it before other machines can reach it.

A page of the web whose name leads to this machine (DNS rebinding) reads nothing: the header Host must be an address,
localhost, or a name that the configuration gives.
"""

import contextlib
import ipaddress
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

logger = logging.getLogger(__name__)
MOST_CONNECTIONS = 128
_HOSTS = "use an address or localhost, or add the name to the key status_hosts of the process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a request. Bytes are sent as they are, a mapping as JSON."""

    code: int = 200
    kind: str = "application/json"
    content: bytes | Mapping[str, Any]


# A page that returns a mapping is answered with 200 and JSON.
Page = Callable[[], Mapping[str, Any] | Answer]


class _HttpServer(ThreadingHTTPServer):
    """Bounded: of too many connections the oldest is closed, so that a flood takes no descriptor that others need."""

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: dict[Any, None] = {}
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own."""
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > MOST_CONNECTIONS else None
            self._open.pop(oldest, None)
        if oldest is not None:
            with contextlib.suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close the connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, _request: object, client_address: object) -> None:
        """Log the error of a connection, which the library would print. A client that disconnects is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            logger.exception("a request failed", extra={"client": str(client_address)})


def answers_to(header: str, names: Collection[str] = ()) -> bool:
    """Whether a request with this header Host is answered: for any address, localhost, and the given names."""
    host = header.strip().lower()
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal():
        host = name
    if host in {"localhost", *(each.lower() for each in names)}:
        return True
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class Server:
    """Answers GET and HEAD for each path with its page. A context manager: it serves within the block.

    `hosts` are the names, besides addresses and localhost, under which it answers.
    """

    def __init__(self, host: str, port: int, pages: Mapping[str, Page], *, hosts: Collection[str] = ()) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def do_GET(self) -> None:
                self._answer(self._asked())

            def do_HEAD(self) -> None:
                self._answer(self._asked(), body=False)

            def _asked(self) -> Answer:
                # A client of HTTP/1.0 may send none; a browser always sends one.
                if not all(answers_to(each, hosts) for each in self.headers.get_all("Host", [])):
                    return Answer(code=421, content={"error": f"unknown host name: {_HOSTS}"})
                page = pages.get(self.path.partition("?")[0])
                if page is None:
                    return Answer(code=404, content={"error": f"there is nothing here; try one of {sorted(pages)}"})
                try:
                    content = page()
                except Exception as error:
                    logger.exception("a page failed", extra={"page": self.path})
                    return Answer(code=500, content={"error": f"{type(error).__name__}: {error}"})
                return content if isinstance(content, Answer) else Answer(content=content)

            def log_message(self, *_: object) -> None:
                pass

            def _answer(self, answer: Answer, *, body: bool = True) -> None:
                content = answer.content
                data = content if isinstance(content, bytes) else json.dumps(content).encode() + b"\n"
                with contextlib.suppress(ConnectionError):
                    self.send_response(answer.code)
                    self.send_header("Content-Type", answer.kind)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    if body:
                        self.wfile.write(data)

        self._server = _HttpServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="status-server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)
