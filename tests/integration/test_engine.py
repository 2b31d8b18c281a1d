"""Functions that work and functions that fail, and the fate of their shards, on a real Spark.

Time limits allow for a slow machine that stalls. Measured on a fast one: a restart took 0.6 s; a silent task was ended
0.7 s after its time limit.
"""

import contextlib
import importlib
import os
import time
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.conftest import SLOTS, Engines
from tests.engine.watching import lifecycle_of, replaced, until, untouched, up
from tests.processes import alive, eventually
from thresher.spark.driver.snapshot import EngineState
from thresher.spark.driver.supervision import Phase
from thresher.spark.outcome import Fatal
from thresher.spark.problem import EngineLost, EngineProblem, ShardsFailed, SparkUnfit, StopForced
from thresher.spark.session.session import Session, _only_one

TICKS: tuple[str, dict[str, Any]] = ("ticks", {})
TALLY: tuple[str, dict[str, Any]] = ("tally", {})


def test_batches_pass_through_the_chain_until_the_source_ends(engines: Engines) -> None:
    with engines(("some", {"rows": 50}), ("same", {}), TALLY) as engine:
        shot = engine.wait(60)
    assert shot.state is EngineState.DONE
    assert [(shard.state, shard.counts, shard.attempt) for shard in shot.shards] == [
        (Phase.FINISHED, {"rows": 50}, 1)
    ] * 2


def test_a_chain_may_end_with_a_function_that_passes_on(engines: Engines) -> None:
    with engines(("some", {"rows": 5}), ("same", {}), shards=1) as engine:
        assert engine.wait(60).shards[0].state is Phase.FINISHED


def test_figures_and_events_reach_the_driver(engines: Engines) -> None:
    events: list[tuple[int, str, dict[str, Any]]] = []
    with engines(TICKS, TALLY, observer=lambda *event: events.append(event)) as engine:
        shards = up(engine)
        until(engine, lambda _: len(events) == 2)
        assert {(shard, name, fields["pid"]) for shard, name, fields in events} == {
            (shard.shard, "first", shard.pid) for shard in shards
        }
        shard = until(engine, lambda shot: shot.shards[0].gauges.get("last", 0) > 5).shards[0]
        assert shard.counts["rows"] >= shard.gauges["last"] > 5
        assert shard.resident_bytes is not None
        assert shard.resident_bytes > 20_000_000
        assert shard.host


def test_a_failing_observer_does_not_disturb_the_engine(engines: Engines) -> None:
    def observer(*_event: object) -> None:
        raise ValueError("no")

    with engines(TICKS, TALLY, observer=observer) as engine:
        up(engine)
        assert engine.stop().state is EngineState.DONE


@pytest.mark.parametrize(
    "errors",
    [
        {
            "raise_error": "ValueError: a bad day",
            "raise_passing": "Passing: not now",
            "raise_particular": "Particular: it is complicated",
            "exit_python": "StepExited: a function called sys.exit(3)",
        },
        {
            "exit_process": "Python worker exited unexpectedly",
            "crash": "Python worker exited unexpectedly",
            "hang_holding_the_lock": "it was silent for 8 s",
            "fork_and_die": "Python worker exited unexpectedly",
            "eat_memory": "MemoryExceeded: ",
        },
    ],
    ids=["told", "untold"],
)
def test_failed_shards_are_restarted_and_their_neighbour_is_not(
    engines: Engines, tmp_path: Path, errors: dict[str, str]
) -> None:
    # Each of the others fails in its own way once the last shard is up.
    go = tmp_path / "go"
    chain = (TICKS, ("misbehave", {"how": list(errors), "when": str(go)}), TALLY)
    with engines(*chain, shards=len(errors) + 1, memory_bytes=400 << 20, silence_seconds=8.0) as engine:
        neighbour = until(engine, lambda shot: shot.shards[-1].counts.get("rows")).shards[-1]
        until(engine, lambda shot: all(shard.counts.get("misbehaved") for shard in shot.shards[:-1]))
        go.touch()
        shot = until(
            engine, lambda shot: all(shard.attempt == 2 and shard.counts.get("rows") for shard in shot.shards[:-1])
        )
        for shard, error in zip(shot.shards, errors.values(), strict=False):
            assert shard.restarts == 1
            assert error in (shard.last_error or "")
        untouched(engine, neighbour)


@pytest.mark.parametrize(
    ("chain", "error"),
    [
        ([TICKS, ("misbehave", {"how": "pass_on_nothing"}), TALLY], "misbehave yielded None"),
        ([("some", {"rows": 5}), ("leaves_early", {})], "leaves_early returned before its input ended"),
        ([("breaks_on_import:read", {}), TALLY], "RuntimeError: this module is broken"),
    ],
)
def test_a_permanent_error_fails_its_shard_at_once(engines: Engines, chain: list[Any], error: str) -> None:
    with engines(*chain, shards=1) as engine:
        with pytest.raises(ShardsFailed, match="1 of 1 shards failed for good: shard 0: ") as raised:
            engine.wait(60)
        assert error in str(raised.value)
        shard = engine.snapshot().shards[0]
        assert (shard.state, shard.attempt, shard.restarts) == (Phase.FAILED, 1, 0)


def test_the_type_of_an_error_survives_the_trip_through_spark(engines: Engines) -> None:
    with engines(TICKS, ("misbehave", {"how": "raise_fatal"}), TALLY, shards=1) as engine:
        with pytest.raises(ShardsFailed):
            engine.wait(60)
        outcome = lifecycle_of(engine).shards.records[0].state.outcome
        shard = engine.snapshot().shards[0]
    assert isinstance(outcome, Fatal)
    assert (shard.state, shard.attempt, shard.last_error) == (Phase.FAILED, 1, "Hopeless: there is no such thing")
    # The module under the name by which a worker imports it.
    assert type(outcome.error.exception) is importlib.import_module("functions").Hopeless
    assert "in raise_fatal" in outcome.error.trace


def test_a_failed_shard_leaves_its_neighbour_running(engines: Engines) -> None:
    with engines(TICKS, ("misbehave", {"how": "raise_fatal"}), TALLY) as engine:
        shot = until(engine, lambda shot: shot.shards[0].state is Phase.FAILED and shot.shards[1].counts)
        untouched(engine, shot.shards[1])
        with pytest.raises(ShardsFailed, match="1 of 2 shards"):
            engine.stop()
        assert engine.snapshot().shards[1].state is Phase.STOPPED


def test_a_shard_fails_after_its_last_restart(engines: Engines) -> None:
    chain = (TICKS, ("misbehave", {"how": "raise_error", "always": True}), TALLY)
    with engines(*chain, shards=1, restarts=2, back_off_seconds=0.05) as engine:
        with pytest.raises(ShardsFailed, match="ValueError: a bad day"):
            engine.wait(60)
        shard = engine.snapshot().shards[0]
        assert (shard.attempt, shard.restarts, shard.state) == (3, 2, Phase.FAILED)


def test_counts_are_summed_over_attempts(engines: Engines) -> None:
    with engines(("ticks", {"every": 0.02}), TALLY, shards=1) as engine:
        (before,) = up(engine)
        assert before.pid is not None
        os.kill(before.pid, 9)
        after = replaced(engine, before)
        assert after.gauges["last"] <= after.counts["rows"] - before.counts["rows"]


def test_a_stop_finishes_the_open_batch(engines: Engines, tmp_path: Any) -> None:
    trace = tmp_path / "trace"
    with engines(("ticks", {"every": 0.01}), ("slow", {"trace": str(trace), "seconds": 1.0})) as engine:
        until(engine, lambda _: trace.exists() and trace.read_text().count("begin") >= 2)
        engine.stop()
        assert [shard.state for shard in engine.snapshot().shards] == [Phase.STOPPED] * 2
    lines = trace.read_text().split("\n")
    begun = {line.removeprefix("begin") for line in lines if line.startswith("begin")}
    ended = {line.removeprefix("end") for line in lines if line.startswith("end")}
    assert begun == ended


def test_a_batch_that_never_ends_is_killed_after_the_grace(engines: Engines) -> None:
    with engines(TICKS, ("misbehave", {"how": "hang"}), TALLY, grace_seconds=1.0) as engine:
        until(engine, lambda shot: shot.shards[0].counts.get("misbehaved") and shot.shards[1].counts)
        # `stop` raises when the shards did not end in time and were killed. Measured: 1.5 s.
        assert engine.stop().shards[0].state is Phase.STOPPED


def test_a_stop_ends_a_shard_during_its_back_off(engines: Engines) -> None:
    chain = (TICKS, ("misbehave", {"how": "raise_error", "always": True}), TALLY)
    with engines(*chain, back_off_seconds=600.0, back_off_most_seconds=600.0) as engine:
        until(engine, lambda shot: shot.shards[0].state is Phase.BACKING_OFF and shot.shards[1].counts)
        engine.request_stop()
        shot = engine.wait(60)  # Measured: 0.3 s.
        assert shot.state is EngineState.DONE
        assert (shot.shards[0].state, shot.shards[0].attempt) == (Phase.STOPPED, 1)


def test_a_shard_without_a_slot_waits_and_can_be_stopped(engines: Engines, spark: Session) -> None:
    with engines(TICKS, TALLY, shards=SLOTS) as first:
        up(first)
        with engines(TICKS, TALLY, shards=2, slot_seconds=0.5) as second:
            shot = until(second, lambda shot: all(s.state is Phase.WAITING for s in shot.shards))
            assert [(shard.pid, shard.attempt, shard.restarts) for shard in shot.shards] == [(None, 1, 0)] * 2
            with engines(TICKS, TALLY, shards=1, slot_seconds=0.5) as third:
                until(third, lambda shot: shot.shards[0].state is Phase.WAITING)
                assert third.stop().shards[0].state is Phase.STOPPED
            first.stop()
            up(second)
            assert [shard.attempt for shard in second.snapshot().shards] == [1, 1]
            assert second.stop().state is EngineState.DONE


def test_a_stop_before_anything_runs_leaves_nothing_running(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        engine.request_stop()
        shot = engine.wait(60)
        assert [shard.state for shard in shot.shards] == [Phase.STOPPED] * 2
        assert shot.state is EngineState.DONE


def test_kill_finishes_no_batch_and_says_so(engines: Engines) -> None:
    with engines(TICKS, ("misbehave", {"how": "hang"}), TALLY, grace_seconds=600.0) as engine:
        until(engine, lambda shot: shot.shards[0].counts.get("misbehaved"))
        engine.kill()
        with pytest.raises(StopForced):
            engine.wait(60)  # Measured: 0.2 s.


def test_the_programs_spark_is_used_and_not_stopped(engines: Engines, spark: Session) -> None:
    with engines(("some", {"rows": 1}), TALLY) as engine:
        assert engine.wait(60).master == f"local[{SLOTS}]"
    assert spark.context.parallelize([1, 2], 1).sum() == 3


def test_an_engine_runs_once(engines: Engines) -> None:
    with engines(("some", {"rows": 1}), TALLY) as engine:
        engine.wait(60)
        with pytest.raises(EngineProblem, match="runs once"):
            engine.start()


def test_leaving_a_block_stops_the_engine(engines: Engines, spark: Session) -> None:
    from thresher.spark import Engine, Pipeline, Step

    steps = (Step(function="functions:ticks"), Step(function="functions:tally"))
    with Engine(Pipeline(name="block", shards=1, steps=steps)) as engine:
        up(engine)
    assert engine.snapshot().state is EngineState.DONE


def test_a_remote_spark_is_refused(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://somewhere")
    with engines(TICKS, TALLY) as engine, pytest.raises(SparkUnfit, match="SPARK_REMOTE is set"):
        engine.wait(60)


@pytest.mark.parametrize(
    ("chain", "error"),
    [
        ([TICKS, ("swallows", {})], "Hopeless: somebody tries to hide this"),
        ([("fails_to_close", {"how": "raise"}), ("raises_fatal", {})], "Hopeless: there is no such thing"),
        ([TICKS, ("raises_fatal", {"stdout": True})], "Hopeless: there is no such thing"),
    ],
)
def test_the_first_error_is_reported_despite_later_ones(engines: Engines, chain: list[Any], error: str) -> None:
    with engines(*chain, shards=1) as engine:
        with pytest.raises(ShardsFailed) as raised:
            engine.wait(60)
        assert error in str(raised.value)


def test_a_hanging_close_is_killed_and_the_first_error_reported(engines: Engines) -> None:
    chain: list[tuple[str, dict[str, Any]]] = [("fails_to_close", {"how": "hang"}), ("raises_fatal", {})]
    told = "after Hopeless: there is no such thing, closing was not finished"
    with engines(*chain, shards=1, grace_seconds=0.5, restarts=0) as engine, pytest.raises(ShardsFailed, match=told):
        engine.wait(60)


def test_a_child_forked_by_a_function_ends_with_its_task(engines: Engines) -> None:
    events: list[Any] = []
    with engines(TICKS, ("forks", {}), shards=1, observer=lambda *event: events.append(event)) as engine:
        until(engine, lambda shot: events and shot.shards[0].counts.get("rows", 0) > 3)
        child = events[0][2]["pid"]
        assert alive(child)
        assert engine.stop().shards[0].state is Phase.STOPPED
        eventually(lambda: not alive(child), 60)


def test_a_configuration_may_hold_objects_of_the_functions_module(engines: Engines) -> None:
    value = importlib.import_module("functions").Mapped()
    config = MappingProxyType({"value": value})
    with engines(("some", {"rows": 3}), ("takes_mapped", config), shards=1) as engine:
        assert engine.wait(60).shards[0].counts == {"rows": 3}


def test_a_wait_returns_after_a_slow_observer_saw_everything(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    # The engine waits a bounded time for observers: here longer than any stall of the machine.
    monkeypatch.setattr("thresher.spark.driver.observer._CLOSE_SECONDS", 60.0)
    seen = []

    def observer(shard: int, name: str, _fields: dict[str, Any]) -> None:
        time.sleep(0.2)
        seen.append((shard, name))

    with engines(("some", {"rows": 2}), TALLY, shards=4, observer=observer) as engine:
        shot = engine.wait(60)
    assert sorted(seen) == [(shard, "first") for shard in range(4)]
    assert [shard.events_dropped for shard in shot.shards] == [0] * 4


def test_a_broken_session_thread_ends_the_engine(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thresher.spark.driver.engine.Engine._shutdown_hook", lambda *_: 1 / 0)
    with engines(TICKS, TALLY) as engine, pytest.raises(EngineLost, match="ZeroDivisionError"):
        engine.wait(60)


def test_an_engine_does_not_take_the_spark_of_another_engine(engines: Engines) -> None:
    told = "an engine of this process has started Spark already"
    with _only_one, engines(TICKS, TALLY) as engine, pytest.raises(SparkUnfit, match=told):
        engine.wait(60)


def test_engines_that_share_the_programs_spark_may_start_together(engines: Engines) -> None:
    with contextlib.ExitStack() as together:
        made = [together.enter_context(engines(("some", {"rows": 3}), TALLY, shards=1)) for _ in range(5)]
        assert [engine.wait(60).shards[0].counts for engine in made] == [{"rows": 3}] * 5


def test_a_shard_without_a_slot_is_warned_of(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    shards = SLOTS + 1
    with engines(TICKS, TALLY, shards=shards, slot_seconds=5.0) as engine:
        shot = until(engine, lambda shot: shot.without_slot and len(shot.shards) - len(shot.without_slot) == SLOTS)
        ((shard, needed),) = shot.without_slot.items()
        assert needed.startswith(f"no slot of Spark has taken it so far: {shards} shards need {shards} cores of local[")
        assert f"shard {shard} of test is waiting: {needed}" in caplog.text
