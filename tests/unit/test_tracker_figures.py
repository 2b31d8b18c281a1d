"""A tracker's figures by queue and its reports of malformed markers, for a bounded number of queues."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.tracker.simulated_log import SimulatedLog
from thresher.observe.figure_sink import Number
from thresher.queue.wire.marker import SYNTHETIC, Marker, MarkerType, MessageId
from thresher.service.health import Role
from thresher.service.report import ServiceSnapshot
from thresher.spark.driver.snapshot import ShardSnapshot
from thresher.spark.driver.supervision import Phase
from thresher.tracker.meter import MOST_QUEUES, Meter
from thresher.tracker.metrics import by_queue, readings
from thresher.tracker.protocol.tracking import Rules


class Told:
    """A shard whose figures and events only the test reads."""

    def __init__(self) -> None:
        self.counts: dict[str, Number] = {}
        self.gauges: dict[str, Number] = {}
        self.notes: dict[str, Callable[[], list[str]]] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []

    def count(self, name: str, amount: Number = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + amount

    def gauge(self, name: str, value: Number) -> None:
        self.gauges[name] = value

    def note(self, name: str, tell: Callable[[], list[str]]) -> None:
        self.notes[name] = tell

    def event(self, name: str, **fields: Any) -> None:
        self.events.append((name, fields))


class Scene:
    """One shard with one partition, which reports whenever the test asks."""

    def __init__(self, shards: int = 1) -> None:
        self.log = SimulatedLog(rules=Rules())
        self.told = Told()
        self._times = iter(range(0, 10**9, 100))
        self.meter = Meter(self.told, shards, monotonic=lambda: float(next(self._times)))
        self.log.run(500)

    def start(self, number: int, queue: bytes, after_ms: int, *, delayed: bool = False) -> None:
        id_ = MessageId(SYNTHETIC if delayed else 0, number)
        self.log.append(
            Marker(type=MarkerType.START, message_id=id_, key=queue, redeliver_after_ms=after_ms, undelivered=delayed)
        )

    def queues(self) -> dict[str, dict[str, Number]]:
        self.meter.report({0: self.log.tracking})
        return by_queue(self.snapshot())

    def snapshot(self) -> ServiceSnapshot:
        shard = ShardSnapshot(
            shard=0,
            state=Phase.RUNNING,
            seconds=1.0,
            attempt=1,
            restarts=0,
            host=None,
            pid=None,
            last_error=None,
            resident_bytes=None,
            notes={name: tell() for name, tell in self.told.notes.items()},
        )
        return ServiceSnapshot(
            name="t", role=Role.LEADING, ready=True, shards=(shard,), counts={0: self.told.counts}, driver={}
        )


def about(seconds: float) -> Any:
    # The tracker's clock is at most one step behind the log's.
    return pytest.approx(seconds, abs=0.2)


def test_each_queue_has_its_own_figures() -> None:
    scene = Scene()
    scene.start(1, b"a", 60_000)
    scene.log.run(3_000)
    scene.start(2, b"a", 60_000)
    scene.start(3, b"b", 60_000, delayed=True)
    scene.start(4, b"c", 100)
    scene.log.run(3_000)
    found = scene.queues()
    assert found["a"] == {"in_progress": 2, "delayed": 0, "due": 0, "oldest_seconds": about(6.0)}
    assert (found["b"]["in_progress"], found["b"]["delayed"]) == (1, 1)
    assert found["c"] == {"redelivered": 1}
    named = {(each.family.name, each.labels): each.value for each in readings(scene.snapshot())}
    assert named["thresher_redelivered_messages_by_queue_total", ("t", "c")] == 1
    assert named["thresher_oldest_in_progress_seconds_by_queue", ("t", "a")] == about(6.0)


def test_an_overdue_queue_is_reported_while_redelivery_is_blocked() -> None:
    scene = Scene()
    scene.start(1, b"a", 1_000)
    scene.log.now_ms += 5_000
    scene.log.read()
    scene.log.ask()
    scene.log.now_ms += 2_000
    scene.log.ask()
    assert scene.queues()["a"]["due"] == 1


def test_queues_beyond_the_limit_are_reported_together() -> None:
    scene = Scene()
    for number in range(MOST_QUEUES + 10):
        for again in range(1 + (number < 5)):
            scene.start(1_000 * again + number, b"q%d" % number, 60_000)
    scene.log.run(1_000)
    found = scene.queues()
    assert len(found) == MOST_QUEUES + 1
    assert {f"q{number}" for number in range(5)} <= set(found), "the queues with the most messages are named"
    assert found["other"]["in_progress"] == 10
    assert found["other"]["oldest_seconds"] == about(1.0)


def test_counts_by_queue_are_monotonic_and_bounded() -> None:
    scene = Scene(shards=10)
    for number in range(8):
        scene.start(number, b"q%d" % number, 100)
        scene.log.run(2_000)
        scene.meter.report({0: scene.log.tracking})
    found = scene.queues()
    assert found == {**{f"q{number}": {"redelivered": 1} for number in range(5)}, "other": {"redelivered": 3}}
    scene.start(100, b"q0", 100)
    scene.start(101, b"q7", 100)
    scene.log.run(2_000)
    again = scene.queues()
    assert (again["q0"], again["other"]) == ({"redelivered": 2}, {"redelivered": 4})
    assert not scene.log.tracking.figures.by_queue, "nothing is kept twice"


def test_a_malformed_marker_is_reported_with_its_offset() -> None:
    scene = Scene()
    place = scene.log.end
    for _ in range(30):
        scene.log.records.append((scene.log.now_ms, b"no marker"))
    scene.log.run(500)
    scene.meter.report({0: scene.log.tracking})
    (last,) = [fields for name, fields in scene.told.events if name == "malformed marker"]
    assert (last["partition"], last["offset"]) == (0, place + 29)
    shown = scene.told.notes["malformed"]()
    assert len(shown) == 10
    assert shown[-1].startswith(f"0-{place + 29}: 9 bytes are not a marker")
    assert scene.told.counts["malformed"] == 30
    scene.meter.report({0: scene.log.tracking})
    assert len(scene.told.events) == 2, "reported once; the other event says that the shard tracks"


def test_new_dead_letters_are_reported_once() -> None:
    scene = Scene()
    for _ in range(2):
        scene.log.tracking.figures.counts["dead.expired"] += 3
        for _ in range(2):
            scene.log.run(2_000)
            scene.meter.report({0: scene.log.tracking})
    assert [fields for name, fields in scene.told.events if name == "dead letters"] == [{"messages": 3}] * 2
