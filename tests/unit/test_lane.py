"""What one attempt's shell decides by itself: under which mark, by which time, and what it notices while it waits."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from thresher.db import TableName
from thresher.relay import lane
from thresher.relay.lane import Lane
from thresher.relay.settings import Delivery, Mandate, Settings
from thresher.spark.bell import Bell
from thresher.spark.shard import Figures, Shard

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
