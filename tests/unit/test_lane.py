"""What one attempt's shell decides by itself: under which mark, by which time, and what it notices while it waits."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from tests.relay.recorded import recorded
from thresher.core.clock import ServerClock
from thresher.db import TableName
from thresher.db.problem import DatabaseLost
from thresher.delivery.effects import Begin, Init
from thresher.delivery.fate import SENT
from thresher.delivery.progress import Progress
from thresher.delivery.settler import Settler
from thresher.relay.settings import Delivery, Mandate, Settings
from thresher.relay.shard import lane
from thresher.relay.shard.lane import Lane, read
from thresher.spark.bell import Bell
from thresher.spark.worker.shard import Figures, Shard

MANDATE = Mandate(
    settings=Settings(
        name="orders",
        dsn="",
        outbox=TableName(table="outbox"),
        kafka={"bootstrap.servers": "127.0.0.1:1", "log_level": 0},
        delivery=Delivery.AT_LEAST_ONCE,
    ),
    outbox_id="ours",
    term="11111111-1111-1111-1111-111111111111",
    term_time=datetime(2026, 1, 1, tzinfo=UTC),
    since="1",
    progress_topic_id="t",
)


class Lanes:
    """Makes lanes without servers, all for the same attempt at the same shard."""

    def __init__(self, resources: ExitStack) -> None:
        self._resources = resources

    def __call__(self) -> Lane:
        shard = Shard(
            pipeline="orders", index=0, shards=1, attempt=1, bell=Bell(), figures=Figures(), resources=self._resources
        )
        return Lane(shard, MANDATE, iter(()))


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lanes]:
    connection = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(lane, "connector_of", lambda _: lambda *_: connection)
    with ExitStack() as resources:
        yield Lanes(resources)


def test_a_task_that_spark_runs_again_within_an_attempt_has_marks_of_its_own(lanes: Lanes) -> None:
    first, again = lanes(), lanes()
    assert first._leader(0) == first._leader(0)
    assert len({each._leader(generation) for each in (first, again) for generation in range(3)}) == 6


def test_a_settling_that_fails_is_noticed_by_a_shard_that_has_no_other_row() -> None:
    def lost(_progress: Progress, _recovering: bool) -> None:
        raise DatabaseLost("the session was ended")

    looks = iter(range(300))
    shared: dict[str, Any] = {
        # Each look takes a moment; so many of them, and it will never be noticed.
        "ahead": SimpleNamespace(take=lambda _: time.sleep(0.01) if next(looks) >= 0 else None),
        "opening": SimpleNamespace(tend=lambda: None),
        "settler": Settler(lost),
    }
    shared["settler"].begin(recorded((1, datetime(2026, 1, 1, tzinfo=UTC), SENT)), False)
    shard: Any = SimpleNamespace(shared=shared, stopping=False)
    with pytest.raises(DatabaseLost, match="the session was ended"):
        list(read(shard, {}))


def test_the_record_that_opens_a_transaction_has_the_databases_time(
    lanes: Lanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[int] = []

    class Client:
        def produce(self, *record: Any) -> None:
            times.append(record[6])

        def __getattr__(self, _name: str) -> Any:
            return lambda *_: None

    monkeypatch.setattr(lane, "producer_of", lambda _: lambda _properties: Client())
    made = lanes()
    now = [5.0]
    made._clock = ServerClock(1_000.0, monotonic=lambda: now[0])
    made.do(Init())
    made.do(Begin())
    made._opening.committed(1)
    now[0] += 86_400
    made.do(Begin())
    assert times == [1_000_000, 87_400_000]
