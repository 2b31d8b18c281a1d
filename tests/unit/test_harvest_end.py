"""Errors with which a relay ends while its harvest is being stopped."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from thresher.core.errors import Superseded
from thresher.db import TableName
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.harvest.harvest import Harvest, State
from thresher.relay.settings import Settings
from thresher.service import service as module
from thresher.service.servers.reach import Reach
from thresher.spark.problem import StopForced
from thresher.testing.leadership import Ballot, StagedLeadership


class Spark:
    """A Spark session that exists."""

    ready = True

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def start(self) -> None: ...

    def check(self) -> None: ...

    def close(self, _abort: Any) -> None: ...


class Leading:
    """A leadership that runs until it is stopped, and then ends with an error."""

    error: BaseException = RuntimeError()
    runs = threading.Event()

    def __init__(self, *_: Any, **__: Any) -> None:
        self._asked = threading.Event()

    def run(self) -> None:
        self.runs.set()
        self._asked.wait(60)
        raise self.error

    def request_stop(self) -> None:
        self._asked.set()

    def snapshot(self) -> None: ...

    def shard_health(self) -> tuple[()]:
        return ()

    waiting_for = None
    take_over = SimpleNamespace(failures=0)
    reach = Reach(())


@pytest.fixture
def harvest(monkeypatch: pytest.MonkeyPatch) -> Harvest:
    monkeypatch.setattr(module, "WarmSpark", Spark)
    monkeypatch.setattr(module, "Leading", Leading)
    monkeypatch.setattr(Leading, "runs", threading.Event())
    settings = Settings(
        name="orders", dsn="host=db", outbox=TableName(table="outbox"), kafka={"bootstrap.servers": "kafka:9092"}
    )
    return Harvest(settings, election=StagedLeadership(Ballot()))


def stopped(harvest: Harvest, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setattr(Leading, "error", error)
    harvest.start()
    assert Leading.runs.wait(60)
    harvest.stop()
    return harvest.wait()


@pytest.mark.parametrize("error", [DatabaseRefused("rows could not be removed"), RuntimeError("a bug")])
def test_a_stopping_harvest_raises_errors_that_need_a_person(
    harvest: Harvest, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(error), match=str(error)):
        stopped(harvest, error, monkeypatch)
    assert harvest.state is State.STOPPED


@pytest.mark.parametrize("error", [DatabaseLost("lost"), Superseded("taken over"), StopForced("no time left")])
def test_a_recoverable_error_does_not_fail_a_stop(
    harvest: Harvest, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stopped(harvest, error, monkeypatch) is State.STOPPED
