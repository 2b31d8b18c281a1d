"""A shard's memory and disk: what is kept where, the alarms before the limit, and the end at it."""

import os
import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.tracker.simulated_log import StoreInMemory
from tests.tracker.tracked import start
from thresher.core.errors import kind_of
from thresher.core.topic_name import is_topic
from thresher.observe.figure_sink import Number
from thresher.queue.wire.marker import encode
from thresher.spark.policy import Policy
from thresher.tracker.protocol.contents import Contents, Packed, Spilled, size_of
from thresher.tracker.room import MemoryFull, Room
from thresher.tracker.settings import TrackerSettings
from thresher.tracker.workload import TrackerTerm

PAGE = os.sysconf("SC_PAGE_SIZE")
SETTINGS = TrackerSettings(message_topic="m", marker_topic="k", dead_topic="d", kafka={}, memory_bytes=1 << 20)


@dataclass
class Scene:
    """A room with its driver, at a time and with a use of memory that the test sets."""

    directory: Path
    used: int = 0
    now: float = 100.0
    gauges: dict[str, Number] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.term = TrackerTerm("term", SETTINGS, {}, Policy())
        self.room = Room(
            self,
            SETTINGS,
            directory=str(self.directory),
            statm=lambda: f"0 {self.used // PAGE} 0",
            monotonic=lambda: self.now,
        )

    def gauge(self, name: str, value: Number) -> None:
        self.gauges[name] = value

    def event(self, name: str, **fields: Any) -> None:
        self.term.observe(0, name, fields)

    def look(self) -> None:
        self.now += 5
        self.room.look(lambda: 7)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    with closing(made.room):
        yield made


def test_memory_raises_an_alarm_before_it_ends_the_shard(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.used = 700_000
    scene.look()
    assert scene.term.alarms == {}
    scene.used = 850_000
    scene.look()
    scene.look()
    (what,) = scene.term.alarms
    assert what == "memory of shard 0"
    assert not is_topic(what)
    assert "at 90% the tracker ends" in scene.term.alarms[what]
    assert len(caplog.records) == 1, "once, while it lasts"
    scene.used = 700_000
    scene.look()
    assert scene.term.alarms == {}
    scene.used = 1_000_000
    with pytest.raises(MemoryFull, match="7 messages in progress") as raised:
        scene.look()
    assert (kind_of(raised.value), raised.value.exit_code) == ("memory_full", 4)


def test_a_half_full_disk_and_one_that_refuses_raise_alarms(scene: Scene) -> None:
    contents, noise = scene.room.contents, random.Random(1).randbytes(100_000)
    kept = [contents.keep(noise) for _ in range(60)]
    scene.look()
    assert scene.term.alarms == {}
    assert scene.gauges["spilled_bytes"] > 5_800_000
    kept += [contents.keep(noise) for _ in range(30)]
    scene.look()
    assert "take more than 50% of 16 MB on disk" in scene.term.alarms["disk of shard 0"]
    before = contents.kept_bytes
    kept += [contents.keep(noise) for _ in range(90)]
    scene.look()
    assert contents.kept_bytes > before, "what the disk does not take stays in memory"
    assert "stay in memory: the temporary file in" in scene.term.alarms["disk of shard 0"]
    scene.used = 1_000_000
    with pytest.raises(MemoryFull, match="Contents fill the memory: the temporary file in"):
        scene.look()
    scene.used = 0
    assert all(contents.read(each) == noise for each in kept)
    for each in kept:
        contents.forget(each)
    scene.look()
    assert (contents.kept_bytes, scene.term.alarms) == (0, {})


def test_contents_beyond_their_share_of_memory_are_spilled(scene: Scene) -> None:
    contents = scene.room.contents
    chance = random.Random(2)
    wholes = [chance.randbytes(4_000) for _ in range(100)] + [bytes(70_000), bytes(2_000), b"small"]
    kept = [contents.keep(each) for each in wholes]
    assert [contents.read(each) for each in kept] == wholes
    assert [size_of(each) for each in kept] == [len(each) for each in wholes]
    assert contents.kept_bytes <= SETTINGS.memory_bytes // 8
    spilled = [isinstance(each, Spilled) for each in kept]
    assert (spilled[:30], spilled[40:100]) == ([False] * 30, [True] * 60)
    assert [type(each) for each in kept[100:]] == [Packed, Packed, bytes]


def test_a_content_that_the_store_refuses_stays_in_memory() -> None:
    contents = Contents(StoreInMemory(0), most_bytes=0)
    whole = encode(start(1, 5, value=random.Random(1).randbytes(9_000)))
    assert contents.read(contents.keep(whole)) == whole
    assert (contents.refusal, contents.kept_bytes) == ("full", len(whole))
