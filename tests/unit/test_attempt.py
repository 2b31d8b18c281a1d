"""Decisions of one attempt outside the protocol: its mark, its time, and failures that it notices while it waits."""

import uuid
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
from thresher.delivery.batch import NOTHING_YET
from thresher.delivery.effects import Begin, Commit, Init, Take
from thresher.delivery.fate import SENT
from thresher.delivery.shard import producer_factory
from thresher.relay.settings import Delivery, Settings, ShardAssignment
from thresher.relay.settle import Settlement
from thresher.relay.shard import attempt
from thresher.relay.shard.attempt import Attempt
from thresher.relay.shard.steps import read_ahead_of
from thresher.relay.store import store_of
from thresher.spark.signal_safe_event import SignalSafeEvent
from thresher.spark.worker.shard import Figures, Shard

ASSIGNMENT = ShardAssignment(
    settings=Settings(
        name="orders",
        dsn="",
        outbox=TableName(table="outbox", schema="public"),
        kafka={"bootstrap.servers": "127.0.0.1:1", "log_level": 0},
        delivery=Delivery.AT_LEAST_ONCE,
    ),
    outbox_id="ours",
    term="11111111-1111-1111-1111-111111111111",
    term_time=datetime(2026, 1, 1, tzinfo=UTC),
    since="1",
    progress_topic_id="t",
    secret="s",
)


class Attempts:
    """Makes attempts without servers, all of the same shard and with the same attempt number."""

    def __init__(self, resources: ExitStack) -> None:
        self._resources = resources

    def __call__(self) -> Attempt:
        shard = Shard(
            pipeline="orders",
            index=0,
            shards=1,
            attempt=1,
            stop_requested=SignalSafeEvent(),
            figures=Figures(),
            resources=self._resources,
        )
        return Attempt(shard, ASSIGNMENT, read_ahead_of(shard, ASSIGNMENT))


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Attempts]:
    connection: Any = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(attempt, "store_of", lambda settings: store_of(settings, lambda *_: connection))
    with ExitStack() as resources:
        yield Attempts(resources)


def test_a_task_that_spark_runs_again_marks_with_other_ids(attempts: Attempts) -> None:
    first, again = attempts(), attempts()
    assert first.leader(0) == first.leader(0)
    assert len({each.leader(generation) for each in (first, again) for generation in range(3)}) == 6


def test_a_mark_begins_with_leader_id_and_shard_number(attempts: Attempts) -> None:
    mark = attempts().leader(3)
    assert (mark.bytes[:8], mark.bytes[8]) == (uuid.UUID(ASSIGNMENT.term).bytes[:8], 0)


def test_a_failed_settling_is_noticed_without_another_row(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> int:
        raise DatabaseLost("the session was ended")

    monkeypatch.setattr(Settlement, "execute", lost)
    made = attempts()
    made.settling.settler.begin(recorded((1, datetime(2026, 1, 1, tzinfo=UTC), SENT)), False)
    with pytest.raises(DatabaseLost):
        made.settling.settler.wait(60)
    handlers = made.handlers(iter([NOTHING_YET]))
    with pytest.raises(DatabaseLost, match="the session was ended"):
        handlers[Take](Take(wait=True))


def test_the_opening_record_has_the_databases_time(attempts: Attempts, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []

    class Client:
        def produce(self, *record: Any) -> None:
            times.append(record[6])

        def __getattr__(self, _name: str) -> Any:
            return lambda *_: None

    monkeypatch.setattr(producer_factory, "producer_of", lambda _: lambda _properties: Client())
    transactions = attempts().transactions
    now = [5.0]
    transactions.clock = ServerClock(1_000.0, monotonic=lambda: now[0])
    handlers = transactions.handlers
    handlers[Init](Init())
    handlers[Begin](Begin())
    assert handlers[Commit](Commit())
    now[0] += 86_400
    handlers[Begin](Begin())
    assert times == [1_000_000, 87_400_000]
