"""A shard that takes rows and brings none to a fate is seen."""

from typing import Any

from thresher.delivery.batch import NOTHING_YET, Batch
from thresher.delivery.effects import Settle, Take
from thresher.delivery.fate import SENT
from thresher.delivery.reading.read_ahead import ReadAhead, ReadAheadLimits
from thresher.delivery.row import Record, Row, RowList
from thresher.delivery.shard.flow import Flow
from thresher.observe.figure_sink import STANDING
from thresher.relay.protocol.progress import Origin, Progress
from thresher.service.metrics import standing
from thresher.spark.driver.snapshot import ShardSnapshot
from thresher.spark.driver.supervision import Phase

BATCH = Batch(rows=RowList([Row(1, 10, "t", b"k", Record("t", b"v", b"k", -1, 0, None))]))
ORIGIN = Origin(outbox_id="ours", system_id="s", incarnation="1", term="now", shard=0)


class Scene:
    """A shard's handlers, watched; what `Take` answers is given."""

    def __init__(self) -> None:
        self.now, self.shown, self.answer = 0.0, -1.0, NOTHING_YET
        self.ahead = ReadAhead(ReadAheadLimits(most_rows=10))
        self.blocked = 0.0
        flow = Flow(self, self.ahead, blocked_seconds=lambda: self.blocked, clock=lambda: self.now)
        self._handlers = flow.watched({Take: lambda _: self.answer, Settle: lambda _: None})

    def count(self, name: str, amount: float = 1) -> None: ...

    def gauge(self, name: str, value: float) -> None:
        assert name == STANDING
        self.shown = value

    def take(self, answer: Any, now: float) -> float:
        self.now, self.answer = now, answer
        assert self._handlers[Take](Take()) is answer
        return self.shown

    def settle(self, *ids: int, recovering: bool = False) -> float:
        record = Progress(origin=ORIGIN, number=1, ids=ids, create_times=ids, fates=[SENT] * len(ids))
        self._handlers[Settle](Settle(record, recovering=recovering))
        return self.shown


def test_a_shard_stands_from_the_first_row_that_it_takes() -> None:
    scene = Scene()
    assert scene.take(NOTHING_YET, 50.0) == 0
    assert scene.take(BATCH, 100.0) == 0
    assert [scene.take(BATCH, 130.9), scene.take(NOTHING_YET, 131.0)] == [30, 31]
    assert [scene.settle(), scene.settle(1, recovering=True)] == [31, 31], "no row has reached a fate"
    assert scene.settle(1) == 0
    assert scene.take(BATCH, 200.0) == 0


def test_a_shard_whose_reads_find_nothing_does_not_stand() -> None:
    scene = Scene()
    scene.take(BATCH, 0.0)
    assert scene.take(NOTHING_YET, 40.0) == 40
    scene.ahead.empty_reads += 1
    assert scene.take(NOTHING_YET, 41.0) == 0


def test_a_shard_stands_while_its_source_is_blocked() -> None:
    scene = Scene()
    scene.blocked = 31.5
    assert scene.take(NOTHING_YET, 40.0) == 31
    scene.blocked = 0.0
    assert scene.take(NOTHING_YET, 41.0) == 0


def test_a_running_shard_that_stands_is_named() -> None:
    def shard(number: int, state: Phase, stood: float) -> ShardSnapshot:
        return ShardSnapshot(
            shard=number, state=state, seconds=1.0, attempt=1, restarts=0, host=None, pid=None, last_error=None,
            resident_bytes=None, gauges={STANDING: stood},
        )  # fmt: skip

    shards = [shard(0, Phase.RUNNING, 29), shard(1, Phase.RUNNING, 30), shard(2, Phase.BACKING_OFF, 90)]
    ((number, text),) = standing(shards).items()
    assert (number, text.split(",")[0]) == (1, "rows that may be sent have stood for 30 s")
