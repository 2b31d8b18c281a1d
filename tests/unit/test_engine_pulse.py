"""Whether the thread that supervises the shards is alive."""

import threading
from typing import cast

import pytest

from tests.processes import eventually
from thresher.spark.driver.engine import Engine
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.problem import SparkFailed
from thresher.spark.session.warm import WarmSpark


class HangingSession:
    """A session whose address keeps the engine's loop waiting, and whose host is then refused: it needs no Spark."""

    submitted = False
    master = "local[1]"
    directory = None

    def __init__(self) -> None:
        self.may_open, self.may_listen, self.may_close = threading.Event(), threading.Event(), threading.Event()

    def lend(self, _: object) -> "HangingSession":
        assert self.may_open.wait(120)
        return self

    @property
    def bind(self) -> str:
        assert self.may_listen.wait(120)
        return "127.0.0.1"

    @property
    def host(self) -> str:
        raise OSError("no such host")

    def close(self, _: object) -> None:
        assert self.may_close.wait(120)


def test_a_hanging_thread_owes_an_answer_until_it_resumes() -> None:
    session = HangingSession()
    pipeline = Pipeline(name="p", shards=1, steps=(Step(function="functions:read"),))
    engine = Engine(pipeline, warm=cast("WarmSpark", session))
    assert engine.silent_seconds() == 0.0
    engine.start()
    try:
        eventually(lambda: engine.silent_seconds() == 0.0, 60)
        session.may_open.set()
        eventually(lambda: engine.silent_seconds() > 0.2, 60)
        session.may_listen.set()
        eventually(lambda: engine.silent_seconds() < 0.2, 60)
        assert not engine.done
    finally:
        for each in (session.may_open, session.may_listen, session.may_close):
            each.set()
        with pytest.raises(SparkFailed, match="no such host"):
            engine.wait(60)
