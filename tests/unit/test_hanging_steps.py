"""Hanging steps: when they are reported, and how they change the probes."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.processes import eventually
from tests.unit.test_relay_end import ASSIGNMENT, SETTINGS, Stuck
from thresher.db.lock_holder import LockHolder, held_by
from thresher.db.problem import DatabaseLost
from thresher.relay.leader.workload import RelayTerm, RelayWorkload
from thresher.service import leading
from thresher.service.events.event import Event, StepHangs
from thresher.service.hanging_steps import HangingStep, LoggedSteps, hanging_steps_of
from thresher.service.health import ProcessHealth, Role, liveness, readiness
from thresher.service.leading import Leading
from thresher.service.process_counts import ProcessCounts
from thresher.service.watching import Watching
from thresher.service.workload import PeriodicCheck
from thresher.spark.driver.snapshot import ShardSnapshot, Snapshot
from thresher.spark.driver.supervision import Phase
from thresher.spark.problem import EngineLost


def shard(index: int, **steps: float) -> ShardSnapshot:
    return ShardSnapshot(
        shard=index, state=Phase.RUNNING, seconds=1, attempt=1, restarts=0, host="h", pid=1, last_error=None,
        resident_bytes=1000, gauges={"relaying": 1}, steps=dict(steps),
    )  # fmt: skip


def hanging_step(step: str = "settle", index: int = 0, seconds: float = 40.0, why: str | None = None) -> HangingStep:
    return HangingStep(shard=index, step=step, seconds=seconds, why=why)


def test_hanging_steps_are_listed_oldest_first() -> None:
    shards = [shard(0, settle=29.9, read=30.0), shard(1, settle=45.04, commit=0.1)]
    found = hanging_steps_of(shards, 30.0, {(1, "settle"): "a lock"})
    assert found == (hanging_step("settle", 1, 45.0, "a lock"), hanging_step("read", 0, 30.0))
    assert hanging_steps_of(shards, 60.0) == ()


def test_a_hanging_step_is_logged_each_minute_until_it_ends() -> None:
    hanging, other = hanging_step(), hanging_step("read", 1)
    logged = LoggedSteps()
    assert logged.due([hanging], 0.0) == [hanging]
    logged = logged.logged([hanging], [hanging], 0.0)
    assert logged.due([hanging, other], 59.0) == [other]
    logged = logged.logged([hanging, other], [other], 59.0)
    assert logged.due([hanging, other], 61.0) == [hanging]
    assert logged.ended([other]) == [hanging.key]
    logged = logged.logged([other], [], 61.0)
    assert logged.ended([other]) == []
    assert logged.due([hanging], 62.0) == [hanging], "it hangs again"


class Hanging(Stuck):
    """An engine whose shards have the test's steps."""

    shards: Sequence[ShardSnapshot] = ()

    def silent_seconds(self) -> float:
        return 0.0

    def snapshot(self) -> Snapshot:
        return replace(super().snapshot(), shards=tuple(self.shards))


class Term(RelayTerm):
    """A term with the test's checks."""

    def __init__(self, explain: Callable[[], str | None], *checks: PeriodicCheck) -> None:
        super().__init__(ASSIGNMENT)
        self._explain, self._checks = explain, checks

    @contextmanager
    def watch(self) -> Iterator[Sequence[PeriodicCheck]]:
        yield self._checks

    def explain(self, *_: Any) -> str | None:
        return self._explain()


def watching(term: Term, engine: Hanging, **more: Any) -> Watching:
    return Watching(RelayWorkload(SETTINGS), term, engine, ProcessCounts(), watch_seconds=0.01, **more)  # type: ignore[arg-type]


def refuse() -> str:
    raise DatabaseLost("the database failed: no answer in 7 s")


@pytest.mark.parametrize(
    ("explain", "why"),
    [(lambda: "backend 7 holds it", "backend 7 holds it"), (refuse, "no answer in 7 s"), (lambda: None, None)],
)
def test_a_watch_reports_a_hanging_step_with_its_reason(
    explain: Callable[[], str | None], why: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    engine, over = Hanging(), threading.Event()
    engine.shards = [shard(1, settle=31.0, read=1.0)]
    watch = watching(Term(explain), engine, stopping=over.is_set, announce=events.append)
    with caplog.at_level(logging.INFO, "thresher.service.watching"):
        watch.start()
        eventually(lambda: events, 60)
        (told,) = events
        assert isinstance(told, StepHangs)
        assert (told.shard, told.step, told.seconds) == (1, "settle", 31.0)
        assert (told.why is None) if why is None else (why in str(told.why))
        assert [each.why for each in watch.hanging_steps] == [told.why]
        assert watch.trouble == ("step_hangs", str(watch.hanging_steps[0]))
        engine.shards = [shard(1, read=1.0)]
        eventually(lambda: "hangs no more" in caplog.text, 60)
    over.set()
    watch.end()
    first = caplog.messages[0]
    assert first.startswith("step 'settle' of shard 1 has not ended for 31 s: ")
    assert (why or "what it waits for is not known") in first
    assert len(events) == 1
    assert watch.trouble is None


def test_server_trouble_is_reported_before_a_hanging_step() -> None:
    def check() -> None:
        raise DatabaseLost("no answer")

    engine = Hanging()
    engine.shards = [shard(0, settle=31.0)]
    watch = watching(Term(lambda: None, PeriodicCheck(at="database", run=check)), engine, stopping=lambda: False)
    assert str(watch.trouble).startswith("('step_hangs', ")
    watch.start()
    eventually(lambda: watch.trouble == ("database_lost", "no answer"), 60)
    watch.end()


@pytest.mark.parametrize(("step", "alive"), [("settle", True), ("read", True), ("commit", True), ("transform", False)])
def test_a_leader_with_a_hanging_step_is_unready(step: str, alive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Workload(RelayWorkload):
        def take_over(self, *_: Any) -> RelayTerm:
            return Term(lambda: None)

    monkeypatch.setattr(leading, "Engine", Hanging)
    monkeypatch.setattr(Hanging, "shards", [shard(0, **{step: 30.0})])
    led = Leading(Workload(SETTINGS))

    def run() -> None:
        with pytest.raises(EngineLost):
            led.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(lambda: led.role is Role.LEADING, 60)
    seen = ProcessHealth(
        role=led.role, wording=led.workload.wording, trouble=led.trouble, silent_seconds=led.silent_seconds()
    )
    verdict = readiness(seen)
    assert (verdict.good, verdict.reason) == (False, "step-hangs")
    assert f"step {step!r} of shard 0 has not ended for 30 s" in verdict.detail["trouble"]
    assert liveness(seen).good == alive
    if not alive:
        assert liveness(seen).detail == {"threads": ["transform of shard 0"]}
    led.request_stop()
    thread.join(60)


def test_a_leader_with_a_shard_without_a_slot_is_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    class Workload(RelayWorkload):
        def take_over(self, *_: Any) -> RelayTerm:
            return Term(lambda: None)

    monkeypatch.setattr(leading, "Engine", Hanging)
    monkeypatch.setattr(Hanging, "shards", [shard(0), replace(shard(1), state=Phase.WAITING)])
    led = Leading(Workload(SETTINGS))

    def run() -> None:
        with pytest.raises(EngineLost):
            led.run()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(lambda: led.role is Role.LEADING, 60)
    verdict = readiness(ProcessHealth(role=led.role, wording=led.workload.wording, trouble=led.trouble))
    assert (verdict.good, verdict.reason) == (False, "no-spark-slot")
    (alarm,) = led.alarms.items()
    assert alarm[0] == "shard 1"
    assert alarm[1].startswith("no slot of Spark has taken it so far: 2 shards need 2 cores of Spark at once; ")
    assert verdict.detail["trouble"] == f"shard 1: {alarm[1]}"
    led.request_stop()
    thread.join(60)


def test_a_lock_holder_is_reported_with_pid_and_query() -> None:
    holder = LockHolder(
        pid=42, user="app", application="psql", state="idle in transaction", seconds=312.4, query="SELECT 1\n  FROM t"
    )
    assert held_by([holder]) == (
        "it waits for a lock held by backend 42 (user app, application 'psql', idle in transaction, its transaction "
        "open for 312 s), query: SELECT 1 FROM t"
    )
    assert held_by([]) is None
    assert "prepared transaction" in str(held_by([LockHolder(pid=None)]))
    long = str(held_by([replace(holder, query="x" * 1000)] * 5))
    assert len(long) < 1100
    assert long.endswith("; and 2 others")
