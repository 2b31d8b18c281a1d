"""A small HTTP server on loopback that shows pages as JSON: how another process sees a running one."""

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

logger = logging.getLogger(__name__)

Page = Callable[[], Mapping[str, Any]]


class Server:
    """Answers GET for each path with what its page returns. A context manager; ends with it."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def do_GET(self) -> None:
                page = pages.get(self.path.partition("?")[0])
                if page is None:
                    self._answer(404, {"error": f"there is nothing here; try one of {sorted(pages)}"})
                    return
                try:
                    content = page()
                except Exception as error:
                    logger.exception("a page failed")
                    self._answer(500, {"error": f"{type(error).__name__}: {error}"})
                else:
                    self._answer(200, content)

            def log_message(self, *_: object) -> None:
                pass

            def _answer(self, code: int, content: Mapping[str, Any]) -> None:
                data = json.dumps(content).encode() + b"\n"
                with contextlib.suppress(ConnectionError):
                    self.send_response(code)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

        self._server = ThreadingHTTPServer((host, port), Handler)
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
