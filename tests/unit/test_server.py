"""How pages are served over HTTP."""

import contextlib
import json
import socket
import struct
import threading
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

import pytest

from tests.processes import eventually
from thresher.observe.server import MOST_CONNECTIONS, Answer, Page, Server


def get(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, Message, bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def broken() -> dict[str, Any]:
    raise LookupError("no such thing")


def test_a_page_has_status_code_and_content_type(caplog: pytest.LogCaptureFixture) -> None:
    pages: dict[str, Page] = {
        "/plain": lambda: {"a": 1},
        "/text": lambda: Answer(kind="text/plain; version=0.0.4", content=b"x 1\n"),
        "/no": lambda: Answer(code=503, content={"reason": "stopping"}),
        "/broken": broken,
    }
    with Server("127.0.0.1", 0, pages) as server:
        code, headers, body = get(server.port, "/plain?a=b")
        assert (code, headers["Content-Type"], json.loads(body)) == (200, "application/json", {"a": 1})
        code, headers, body = get(server.port, "/text")
        assert (code, headers["Content-Type"], body) == (200, "text/plain; version=0.0.4", b"x 1\n")
        code, headers, body = get(server.port, "/text", "HEAD")
        assert (code, headers["Content-Length"], body) == (200, "4", b"")
        code, _, body = get(server.port, "/no")
        assert (code, json.loads(body)) == (503, {"reason": "stopping"})
        code, _, body = get(server.port, "/broken")
        assert (code, "no such thing" in json.loads(body)["error"]) == (500, True)
        assert "a page failed" in caplog.text
        code, _, body = get(server.port, "/nowhere")
        assert (code, "/plain" in json.loads(body)["error"]) == (404, True)


def test_a_probe_that_disconnects_early_prints_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = threading.active_count()
    with Server("127.0.0.1", 0, {"/readyz": lambda: Answer(code=503, content={"reason": "x" * 1000})}) as server:
        # The client leaves before its answer, within it, and after it. The last one leaves while the server waits.
        for read in ("", "HTTP", 'xxx"}\n'):
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as probe:
                probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = b""
                while read.encode() not in answer:
                    answer += probe.recv(4096)
                # The connection ends with a reset, as of a killed process.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eventually(lambda: threading.active_count() == before + 1, 60.0)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_failing_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def unwritable() -> Answer:
        return Answer(content={"set": {1, 2}})

    with Server("127.0.0.1", 0, {"/": unwritable}) as server:
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            get(server.port, "/")
        eventually(lambda: "a request failed" in caplog.text, 60.0)
    assert "not JSON serializable" in caplog.text


def test_a_page_answers_under_addresses_and_known_names_alone() -> None:
    known = ["127.0.0.1:8640", "10.1.2.3", "[::1]:8640", "LocalHost:80", "relay.shop:8640", "RELAY.shop"]
    unknown = [
        "evil.example", "evil.example:8640", "127.0.0.1.evil.example", "relay.shop.evil.example", "xrelay.shop",
        "localhost.evil.example", "2130706433", "evil.example:127.0.0.1", ":8640", "localhost\r\nHost: evil.example",
    ]  # fmt: skip
    with Server("127.0.0.1", 0, {"/status": lambda: {"name": "orders"}}, hosts=["relay.shop"]) as server:
        assert [get(server.port, "/status", Host=host)[0] for host in known] == [200] * len(known)
        for host in unknown:
            with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
                client.sendall(f"GET /status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = client.makefile("rb").read()
            assert (host, answer[:13], b"orders" in answer) == (host, b"HTTP/1.1 421 ", False)
            assert b"status_hosts" in answer


def test_a_flood_of_connections_is_bounded_and_a_probe_is_answered() -> None:
    before, most = threading.active_count(), 0
    with Server("127.0.0.1", 0, {"/healthz": dict}) as server, contextlib.ExitStack() as flood:
        for _ in range(3 * MOST_CONNECTIONS):
            flood.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            most = max(most, threading.active_count() - before)
        assert get(server.port, "/healthz")[0] == 200
    # A connection that is closed has its thread for a moment longer.
    assert most < 2 * MOST_CONNECTIONS
