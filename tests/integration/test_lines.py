"""Which connections get a shard's line: real sockets to line servers, of a running engine and of their own."""

import contextlib
import dataclasses
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Engines
from tests.engine.watching import lifecycle_of, replaced, until, untouched, up
from tests.processes import alive, eventually
from thresher import __version__
from thresher.spark.driver.engine import Engine
from thresher.spark.driver.event_loop import EventLoop
from thresher.spark.driver.line_server import LinePlace, LineServer
from thresher.spark.driver.task_connection import TaskConnection, TaskIdentity
from thresher.spark.frame_socket import ConnectionBroken, FrameSocket
from thresher.spark.line_key import LineKey, make_nonce
from thresher.spark.pipeline import Step
from thresher.spark.policy import Policy
from thresher.spark.problem import EngineProblem, LineUnreachable
from thresher.spark.session.certificate import make_certificate
from thresher.spark.session.session import Session
from thresher.spark.task_spec import DriverAddress, TaskSpec
from thresher.spark.tls import TlsEnd, task_context
from thresher.spark.worker.line import Line
from thresher.spark.worker.shard import Figures

TICKS: tuple[str, dict[str, Any]] = ("ticks", {})
TALLY: tuple[str, dict[str, Any]] = ("tally", {})


def line_address(engine: Engine) -> DriverAddress:
    """Return the address of the engine's line server, and its key."""
    server = lifecycle_of(engine).shards.line_server
    assert server is not None
    return server.address


def hello(engine: Engine, **changes: Any) -> dict[str, Any]:
    """Return a hello that the line server accepts, with changes."""
    state = lifecycle_of(engine).shards.records[0].state
    proper = {
        "is": "hello", "version": __version__, "shard": 0,
        "attempt": state.attempt, "task": state.newest_task + 1,
        "host": "here", "pid": 1 << 30, "born": 1, "parent": None,
    }  # fmt: skip
    return proper | changes


class Client:
    """A client of a line server other than a task."""

    def __init__(self, address: DriverAddress) -> None:
        self.address = address
        if isinstance(address.place, str):
            self.raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.raw.connect(address.place)
        else:
            self.raw = socket.create_connection(address.place, timeout=60)
        self.socket = FrameSocket(self.raw)
        self.nonces = (make_nonce(), "")

    def knock(self, key: LineKey | None = None) -> dict[str, Any] | None:
        """Knock with a key, and return the answer."""
        ours = self.nonces[0]
        self.socket.send({"is": "knock", "nonce": ours, "proof": (key or self.address.key).proof("knock", ours)})
        answer = self.answer()
        if answer is not None:
            self.nonces = (ours, answer["nonce"])
            if self.address.certificate is not None:
                self.socket.encrypt_by(TlsEnd(task_context(self.address.certificate), server=False))
        return answer

    def hello(self, frame: dict[str, Any]) -> None:
        """Knock, and say this hello with the proof that belongs to it."""
        if not self.nonces[1]:
            assert self.knock() is not None
        self.socket.send({"proof": self.address.key.proof("hello", *self.nonces)} | frame)

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
    ({"proof": "wrong"}, None),
    ({"proof": None}, None),
    ({"proof": "ü"}, None),
    ({"proof": "\ud800"}, None),
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
GARBAGE = [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x02{}", b"\x7f\xff\xff\xff", b"\x00\x00"]


def test_only_the_newest_task_of_this_engine_gets_the_line(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough that no connection is closed because the machine stalls before its hello.
    monkeypatch.setattr("thresher.spark.driver.line_server._HELLO_SECONDS", 60.0)
    with engines(TICKS, TALLY) as engine:
        shards, address = up(engine), line_address(engine)
        for changes, why in REFUSED:
            with Client(address) as client:
                client.hello(hello(engine, **changes))
                answer = client.answer()
                assert (answer and answer["why"]) == why, changes
                assert answer is None or (answer["is"], client.answer()) == ("refused", None), changes
        with Client(address) as stranger:
            assert stranger.knock(LineKey.make()) is None
        with Client(address) as first, Client(address) as second:
            # A recorded hello opens no second connection.
            first.knock()
            second.knock()
            second.hello(hello(engine, proof=address.key.proof("hello", *first.nonces)))
            assert second.answer() is None
        for shard in shards:
            untouched(engine, shard)


def test_connections_with_garbage_or_silence_are_closed(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        (before, _) = up(engine)
        for garbage in GARBAGE:
            with Client(line_address(engine)) as client:
                client.raw.send(garbage)
                assert client.answer() is None, garbage
        untouched(engine, before)


def test_a_newer_task_of_an_attempt_ends_the_older_one(engines: Engines) -> None:
    # An older task whose line stays open would end by itself after these seconds.
    with engines(TICKS, TALLY, silence_seconds=600.0, deaf_seconds=600.0, slot_seconds=600.0) as engine:
        before, neighbour = up(engine)
        with Client(line_address(engine)) as client:
            client.hello(hello(engine))
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


def test_a_task_that_sends_garbage_loses_only_its_own_line(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        _, neighbour = up(engine)
        with Client(line_address(engine)) as client:
            client.hello(hello(engine))
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


class Welcoming:
    """Welcomes every task, as the supervision does with the newest."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []

    def on_hello(self, connection: TaskConnection, _identity: TaskIdentity) -> None:
        connection.welcome()

    def on_frame(self, _connection: TaskConnection, _identity: TaskIdentity, frame: dict[str, Any]) -> None:
        self.frames.append(frame)

    def on_line_closed(self, _connection: TaskConnection, _identity: TaskIdentity) -> None:
        pass


@contextlib.contextmanager
def serving(place: LinePlace) -> Iterator[tuple[DriverAddress, Welcoming]]:
    """Run a line server of its own."""
    handler, servers, ready = Welcoming(), list[LineServer](), threading.Event()
    loop = EventLoop("lines", lambda _now: None, lambda _error: None)

    def open_server() -> None:
        servers.append(LineServer(loop, handler, place=place, key=LineKey.make()))
        ready.set()

    loop.post(open_server)
    loop.start()
    assert ready.wait(60)
    try:
        yield servers[0].address, handler
    finally:
        loop.post(servers[0].close)
        loop.post(loop.finish)
        assert loop.join(60)


@pytest.fixture
def over_tcp(spark: Session) -> LinePlace:
    """A place as on a cluster."""
    return LinePlace(bind="127.0.0.1", advertise="127.0.0.1", certificate=make_certificate(spark.context._jvm))


def line_to(address: DriverAddress) -> Line:
    spec = TaskSpec(
        pipeline="test",
        shard=0,
        shards=1,
        attempt=1,
        steps=pickle.dumps((Step(function="sys:exit"),)),
        policy=Policy(),
        address=address,
    )
    return Line(spec, Figures(), task=0)


def test_what_crosses_the_network_tells_strangers_nothing(over_tcp: LinePlace) -> None:
    with serving(over_tcp) as (address, handler), socket.create_server(("127.0.0.1", 0)) as between:
        seen = bytearray()

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while chunk := source.recv(65536):
                    seen.extend(chunk)
                    target.sendall(chunk)

        line = line_to(dataclasses.replace(address, place=between.getsockname()))
        opening = threading.Thread(target=line.open)
        opening.start()
        assert isinstance(address.place, tuple)
        near, _ = between.accept()
        with near, socket.create_connection(address.place) as far:
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pass_on, args=ends, daemon=True).start()
            opening.join(60)
            line.event("payment", {"account": "hunter2"})
            line.send_due()
            eventually(lambda: any(frame.get("name") == "payment" for frame in handler.frames), 60)
            line.close()
    assert b"knock" in seen
    assert b"challenge" in seen
    for secret in (b"hello", b"hunter2", address.key.secret, address.key.secret.hex().encode()):
        assert secret not in seen


def test_a_task_tells_a_false_driver_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.spark.worker.line._CONNECT_SECONDS", 1.0)
    heard: list[dict[str, Any]] = []
    with socket.create_server(("127.0.0.1", 0)) as false:

        def pretend() -> None:
            """Answer as a driver that does not have the key, and would welcome anybody."""
            while True:
                try:
                    accepted, _ = false.accept()
                except OSError:
                    return
                client = FrameSocket(accepted)
                with contextlib.suppress(ConnectionBroken):
                    while True:
                        for frame in client.receive():
                            heard.append(frame)
                            proof = LineKey.make().proof("challenge", frame.get("nonce", ""), make_nonce())
                            client.send({"is": "challenge", "nonce": make_nonce(), "proof": proof})
                            client.send({"is": "welcome"})
                        time.sleep(0.01)
                client.close()

        thread = threading.Thread(target=pretend)
        thread.start()
        try:
            with pytest.raises(LineUnreachable, match="no driver proved that it is this task's"):
                line_to(DriverAddress(place=false.getsockname(), key=LineKey.make())).open()
        finally:
            false.shutdown(socket.SHUT_RDWR)
            thread.join(60)
    assert {frame["is"] for frame in heard} == {"knock"}


def test_a_task_trusts_no_other_certificate(
    over_tcp: LinePlace, spark: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever sits between a task and its driver passes on the proofs, and cannot decrypt what follows.
    monkeypatch.setattr("thresher.spark.worker.line._CONNECT_SECONDS", 2.0)
    other = make_certificate(spark.context._jvm).public
    with serving(over_tcp) as (address, handler), pytest.raises(LineUnreachable, match="TLS failed"):
        line_to(dataclasses.replace(address, certificate=other)).open()
    assert handler.frames == []


def test_a_flood_of_strangers_keeps_no_task_out(over_tcp: LinePlace) -> None:
    with serving(over_tcp) as (address, handler):
        assert isinstance(address.place, tuple)
        over, made = threading.Event(), [0, 0]

        def flood(which: int) -> None:
            held: list[socket.socket] = []
            while not over.is_set():
                with contextlib.suppress(OSError):
                    stranger = socket.create_connection(address.place, timeout=5)  # type: ignore[arg-type]
                    stranger.sendall(b"\x00\x00\x0f\xff{")  # most of a frame, never the rest
                    held.append(stranger)
                    made[which] += 1
                if len(held) > 300:
                    held.pop(0).close()
            for stranger in held:
                stranger.close()

        floods = [threading.Thread(target=flood, args=(which,)) for which in range(2)]
        for each in floods:
            each.start()
        try:
            eventually(lambda: sum(made) > 600, 60)
            lines = [line_to(address) for _ in range(20)]
            for line in lines:
                line.open()
            # The lines that are open go on, whatever knocks.
            for number, line in enumerate(lines):
                line.event("alive", {"line": number})
                line.send_due()
            eventually(lambda: sum(frame.get("name") == "alive" for frame in handler.frames) == 20, 60)
            for line in lines:
                line.close()
        finally:
            over.set()
            for each in floods:
                each.join(60)
