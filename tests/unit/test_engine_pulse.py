"""Whether the thread that supervises the shards is alive."""

import threading

from tests.processes import eventually
from thresher.spark.driver.engine import Engine
from thresher.spark.driver.snapshot import EngineState
from thresher.spark.pipeline import Pipeline, Step


def test_a_hanging_thread_owes_an_answer_until_it_resumes() -> None:
    engine = Engine(Pipeline(name="p", shards=1, steps=(Step(function="functions:read"),)))
    assert engine.silent_seconds() == 0.0
    # Only the engine's loop runs: it needs no Spark.
    engine._status.state = EngineState.RUNNING
    engine._lifecycle.loop.start()
    go_on = threading.Event()

    def hang() -> None:
        go_on.wait(120)

    try:
        eventually(lambda: engine.silent_seconds() == 0.0, 60)
        engine._lifecycle.loop.post(hang)
        eventually(lambda: engine.silent_seconds() > 0.2, 60)
        go_on.set()
        eventually(lambda: engine.silent_seconds() < 0.2, 60)
    finally:
        go_on.set()
        engine._lifecycle.loop.post(engine._lifecycle.loop.finish)
        assert engine._lifecycle.loop.join(60)
