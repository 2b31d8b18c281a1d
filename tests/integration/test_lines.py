"""Who may have a shard's line: tried with real sockets on the line of a running engine."""

import contextlib
import os
import socket
import time
from typing import Any

import pytest

from tests.conftest import Engines
from tests.engine.watching import replaced, until, untouched, up
from tests.processes import alive, eventually
from thresher import __version__
from thresher.spark.driver.engine import Engine
from thresher.spark.problem import EngineProblem
from thresher.spark.wire import Wire, WireBroken

TICKS: tuple[str, dict[str, Any]] = ("ticks", {})
TALLY: tuple[str, dict[str, Any]] = ("tally", {})


def hello(engine: Engine, **changes: Any) -> dict[str, Any]:
    """A hello that would be welcomed, with changes."""
    assert engine._floor._exchange is not None
    known = engine._floor.stations[0].known
    proper = {
        "is": "hello", "token": engine._floor._exchange.address.token, "version": __version__, "shard": 0,
        "attempt": known.attempt, "task": known.newest + 1, "host": "here", "pid": 1 << 30, "born": 1, "parent": None,
    }  # fmt: skip
    return proper | changes


class Caller:
    """A stranger on the line."""

    def __init__(self, engine: Engine) -> None:
        assert engine._floor._exchange is not None
        address = engine._floor._exchange.address
        self.wire = Wire(socket.create_connection((address.host, address.port), timeout=60))

    def answer(self, seconds: float = 60.0) -> dict[str, Any] | None:
        """The next thing that is said; None when it hung up."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if frames := self.wire.receive():
                    return frames[0]
            except WireBroken:
                return None
            time.sleep(0.01)
        raise AssertionError("no answer")

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()


REFUSED: list[tuple[dict[str, Any], str | None]] = [
    ({"token": "wrong"}, None),
    ({"token": None}, None),
    ({"token": "ü"}, None),
    ({"token": "\ud800"}, None),
    ({"pid": float("inf")}, "its hello cannot be understood"),
    ({"version": "0.0.0"}, "version"),
    ({"attempt": 0}, "replaced"),
    ({"attempt": 2}, "replaced"),
    ({"task": -1}, "replaced"),
    ({"shard": 2}, "there is no such shard"),
    ({"shard": -1}, "there is no such shard"),
    ({"pid": "x"}, "its hello cannot be understood"),
    ({"parent": [1]}, "its hello cannot be understood"),
    ({"host": "x" * 5000}, None),
]
GARBAGE = [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02[]", b"\x7f\xff\xff\xff", b"\x00\x00"]


def test_who_is_not_the_newest_task_of_this_engine_is_refused(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody is hung up on because the machine stalls between a call and its hello.
    monkeypatch.setattr("thresher.spark.driver.line_server._HELLO_SECONDS", 60.0)
    with engines(TICKS, TALLY) as engine:
        shards = up(engine)
        for changes, why in REFUSED:
            with Caller(engine) as caller:
                caller.wire.send(hello(engine, **changes))
                answer = caller.answer()
                assert (answer and answer["why"]) == why, changes
                assert answer is None or (answer["is"], caller.answer()) == ("refused", None), changes
        for shard in shards:
            untouched(engine, shard)


def test_garbage_and_silence_are_hung_up_on(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        (before, _) = up(engine)
        for garbage in GARBAGE:
            with Caller(engine) as caller:
                caller.wire._socket.send(garbage)
                assert caller.answer() is None, garbage
        untouched(engine, before)


def test_a_newer_task_of_the_same_attempt_takes_the_line_and_the_older_one_ends(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        before, neighbour = up(engine)
        with Caller(engine) as caller:
            caller.wire.send(hello(engine))
            answer = caller.answer()
            assert answer is not None
            assert answer["is"] == "welcome"

            def older_ended() -> bool:
                # The newcomer says that it is there: nobody is ended for its silence. It may be hung up on by now.
                with contextlib.suppress(WireBroken):
                    caller.wire.send({"is": "beat", "counts": {}, "gauges": {}, "resident": 1, "dropped": 0})
                return not alive(before.pid or 0)

            eventually(older_ended, 60)  # seen: 0.1
            # The real job ended with its task, so the newcomer's attempt is over as well.
            until(engine, lambda shot: shot.shards[0].attempt == 2)
            while answer is not None and answer["is"] != "kill":
                answer = caller.answer()
        untouched(engine, neighbour)


def test_many_strangers_do_not_keep_a_task_from_its_line(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        before, _ = up(engine)
        callers = [Caller(engine) for _ in range(300)]
        assert before.pid is not None
        os.kill(before.pid, 9)
        until(engine, lambda shot: shot.shards[0].attempt >= 2 and shot.shards[0].state == "running")
        for caller in callers:
            caller.wire.close()


def test_a_task_that_talks_nonsense_loses_its_line_and_harms_nobody(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        _, neighbour = up(engine)
        with Caller(engine) as caller:
            caller.wire.send(hello(engine))
            assert caller.answer() is not None
            caller.wire.send({"is": "beat", "counts": {"rows": None}, "gauges": {}, "resident": 1, "dropped": 0})
            while caller.answer() is not None:
                pass
        until(engine, lambda shot: shot.shards[0].attempt >= 2 and shot.shards[0].state == "running")
        untouched(engine, neighbour)


def test_an_engine_with_a_bug_ends_instead_of_running_on_unsupervised(
    engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engines(TICKS, TALLY) as engine:
        shards = up(engine)
        monkeypatch.setattr(engine._floor, "_on_ended", lambda *_: 1 / 0)
        os.kill(shards[0].pid or 0, 9)
        with pytest.raises(EngineProblem, match="which is a bug: ZeroDivisionError"):
            engine.wait(60)
        eventually(lambda: not any(alive(shard.pid or 0) for shard in shards), 60)


def test_a_broken_line_ends_its_task_and_nobody_elses(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        before, neighbour = up(engine)
        caller = engine._floor.stations[0].caller
        assert caller is not None
        # As if the network had cut it: the driver's end closes without a word.
        engine._loop.post(lambda: caller._drop(caller))
        after = replaced(engine, before)
        assert (after.last_error or "").startswith("it stopped unasked: the line broke")
        untouched(engine, neighbour)
