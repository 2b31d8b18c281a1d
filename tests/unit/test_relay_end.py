"""The error of a leadership whose Spark fails too."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.processes import eventually
from thresher.core.errors import Superseded
from thresher.db import TableName
from thresher.relay.leader.workload import RelayTerm, RelayWorkload
from thresher.relay.settings import Settings, ShardAssignment
from thresher.service import leading
from thresher.service.leading import Leading
from thresher.service.process_counts import ProcessCounts
from thresher.service.watching import Watching
from thresher.service.workload import PeriodicCheck
from thresher.spark.driver.snapshot import EngineState, Snapshot
from thresher.spark.problem import EngineLost

SETTINGS = Settings(name="r", dsn="", outbox=TableName(table="outbox"), kafka={})
ASSIGNMENT = ShardAssignment(
    settings=SETTINGS,
    outbox_id="o",
    term="t",
    term_time=datetime.now(UTC),
    since="s",
    progress_topic_id="p",
    secret="s",
)


class Stuck:
    """An engine whose Spark does not answer a stop."""

    done = False

    def __init__(self, *_: Any, **__: Any) -> None:
        self._asked = threading.Event()

    def start(self) -> None: ...

    def snapshot(self) -> Snapshot:
        return Snapshot(pipeline="r", state=EngineState.RUNNING, error=None, master=None, shards=())

    def request_stop(self) -> None:
        self._asked.set()

    def wait(self) -> Snapshot:
        assert self._asked.wait(60)
        raise EngineLost("Spark did not answer")


class Term(RelayTerm):
    """A term with one look."""

    def __init__(self, look: Any) -> None:
        super().__init__(ASSIGNMENT)
        self._look = look

    @contextmanager
    def watch(self) -> Iterator[Sequence[PeriodicCheck]]:
        yield [PeriodicCheck(at="database", run=self._look)]

    def taken_back(self) -> bool:
        return False


@pytest.mark.parametrize("superseded", [True, False])
def test_a_superseded_relay_ends_as_superseded_despite_lost_spark(
    superseded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        if superseded:
            raise Superseded("a newer relay has taken over")
        led.request_stop()

    class Workload(RelayWorkload):
        def take_over(self, *_: Any) -> RelayTerm:
            return Term(look)

    monkeypatch.setattr(leading, "Engine", Stuck)
    led = Leading(Workload(SETTINGS), watch_seconds=0.01)
    with pytest.raises(Superseded if superseded else EngineLost) as raised:
        led.run()
    assert raised.value.exit_code == (3 if superseded else 1)


@pytest.mark.parametrize("late", [True, False])
def test_a_watch_that_outlives_its_leadership_reports_nothing(late: bool) -> None:
    looking, go_on = threading.Event(), threading.Event()

    def look() -> None:
        looking.set()
        assert go_on.wait(60)
        raise Superseded("the term is another: the next leadership's")

    watch = Watching(
        RelayWorkload(SETTINGS),
        Term(look),
        Stuck(),  # type: ignore[arg-type]
        ProcessCounts(),
        stopping=lambda: False,
        watch_seconds=0.01,
    )
    watch.start()
    assert looking.wait(60)
    if late:
        # The look took so long that the leadership has ended without it.
        watch.end(0.01)
    go_on.set()
    eventually(lambda: not watch.alive, 60)
    assert (watch.error is None) == late
