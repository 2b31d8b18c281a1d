"""Which connections get a shard's line: real sockets to the line server of a running engine."""

import contextlib
import os
import socket
import time
from typing import Any

import pytest

from tests.conftest import Engines
from tests.engine.watching import lifecycle_of, replaced, until, untouched, up
from tests.processes import alive, eventually
from thresher import __version__
from thresher.spark.driver.engine import Engine
from thresher.spark.frame_socket import ConnectionBroken, FrameSocket
from thresher.spark.problem import EngineProblem
from thresher.spark.task_spec import DriverAddress

TICKS: tuple[str, dict[str, Any]] = ("ticks", {})
TALLY: tuple[str, dict[str, Any]] = ("tally", {})


def line_address(engine: Engine) -> DriverAddress:
    """Return the address of the engine's line server, and its token."""
    server = lifecycle_of(engine).shards.line_server
    assert server is not None
    return server.address


def hello(engine: Engine, **changes: Any) -> dict[str, Any]:
    """Return a hello that the line server accepts, with changes."""
    state = lifecycle_of(engine).shards.records[0].state
    proper = {
        "is": "hello", "token": line_address(engine).token, "version": __version__, "shard": 0,
        "attempt": state.attempt, "task": state.newest_task + 1,
        "host": "here", "pid": 1 << 30, "born": 1, "parent": None,
    }  # fmt: skip
    return proper | changes


class Client:
    """A client of the line server other than a task."""

    def __init__(self, engine: Engine) -> None:
        address = line_address(engine)
        self.raw = socket.create_connection((address.host, address.port), timeout=60)
        self.socket = FrameSocket(self.raw)

    def answer(self, seconds: float = 60.0) -> dict[str, Any] | None:
        """Return the next message of the line server; None when it closed the connection."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if frames := self.socket.receive():
                    return frames[0]
            except ConnectionBroken:
                return None
            time.sleep(0.01)
        raise AssertionError("no answer")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


REFUSED: list[tuple[dict[str, Any], str | None]] = [
    ({"token": "wrong"}, None),
    ({"token": None}, None),
    ({"token": "ü"}, None),
    ({"token": "\ud800"}, None),
    ({"pid": float("inf")}, "its hello is malformed"),
    ({"version": "0.0.0"}, "version"),
    ({"attempt": 0}, "replaced"),
    ({"attempt": 2}, "replaced"),
    ({"task": -1}, "replaced"),
    ({"shard": 2}, "there is no such shard"),
    ({"shard": -1}, "there is no such shard"),
    ({"pid": "x"}, "its hello is malformed"),
    ({"parent": [1]}, "its hello is malformed"),
    ({"host": "x" * 5000}, None),
]
GARBAGE = [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02[]", b"\x7f\xff\xff\xff", b"\x00\x00"]


def test_only_the_newest_task_of_this_engine_gets_the_line(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough that no connection is closed because the machine stalls before its hello.
    monkeypatch.setattr("thresher.spark.driver.line_server._HELLO_SECONDS", 60.0)
    with engines(TICKS, TALLY) as engine:
        shards = up(engine)
        for changes, why in REFUSED:
            with Client(engine) as client:
                client.socket.send(hello(engine, **changes))
                answer = client.answer()
                assert (answer and answer["why"]) == why, changes
                assert answer is None or (answer["is"], client.answer()) == ("refused", None), changes
        for shard in shards:
            untouched(engine, shard)


def test_connections_with_garbage_or_silence_are_closed(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        (before, _) = up(engine)
        for garbage in GARBAGE:
            with Client(engine) as client:
                client.raw.send(garbage)
                assert client.answer() is None, garbage
        untouched(engine, before)


def test_a_newer_task_of_an_attempt_ends_the_older_one(engines: Engines) -> None:
    # An older task whose line stays open would end by itself after these seconds.
    with engines(TICKS, TALLY, silence_seconds=600.0, deaf_seconds=600.0, slot_seconds=600.0) as engine:
        before, neighbour = up(engine)
        with Client(engine) as client:
            client.socket.send(hello(engine))
            answer = client.answer()
            assert answer is not None
            assert answer["is"] == "welcome"

            def older_ended() -> bool:
                # The newer task sends heartbeats, so that it is not ended as silent. Its line may already be closed.
                with contextlib.suppress(ConnectionBroken):
                    client.socket.send(
                        {"is": "beat", "counts": {}, "gauges": {}, "steps": {}, "resident": 1, "dropped": 0}
                    )
                return not alive(before.pid or 0)

            eventually(older_ended, 60)  # Measured: 0.1 s.
            # The real Spark job ended with its task, so the newer task's attempt is over too.
            until(engine, lambda shot: shot.shards[0].attempt == 2)
            while answer is not None and answer["is"] != "kill":
                answer = client.answer()
        untouched(engine, neighbour)


def test_many_foreign_connections_do_not_block_a_tasks_line(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        before, _ = up(engine)
        clients = [Client(engine) for _ in range(300)]
        assert before.pid is not None
        os.kill(before.pid, 9)
        until(engine, lambda shot: shot.shards[0].attempt >= 2 and shot.shards[0].state == "running")
        for client in clients:
            client.socket.close()


def test_a_task_that_sends_garbage_loses_only_its_own_line(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        _, neighbour = up(engine)
        with Client(engine) as client:
            client.socket.send(hello(engine))
            assert client.answer() is not None
            client.socket.send(
                {"is": "beat", "counts": {"rows": None}, "gauges": {}, "steps": {}, "resident": 1, "dropped": 0}
            )
            while client.answer() is not None:
                pass
        until(engine, lambda shot: shot.shards[0].attempt >= 2 and shot.shards[0].state == "running")
        untouched(engine, neighbour)


def test_an_engine_with_a_bug_ends_its_shards(engines: Engines) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with engines(TICKS, TALLY) as engine:
        shards = up(engine)
        lifecycle_of(engine).loop.post(broken)
        with pytest.raises(EngineProblem, match="which is a bug: ZeroDivisionError"):
            engine.wait(60)
        eventually(lambda: not any(alive(shard.pid or 0) for shard in shards), 60)


def test_a_broken_line_ends_only_its_own_task(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        before, neighbour = up(engine)
        lifecycle = lifecycle_of(engine)
        connection = lifecycle.shards.records[0].connection
        assert connection is not None
        # As a broken network: the driver's end closes without a message.
        lifecycle.loop.post(connection.close)
        after = replaced(engine, before)
        assert (after.last_error or "").startswith("it stopped unasked: the line broke")
        untouched(engine, neighbour)
