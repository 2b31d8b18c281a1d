"""Late events of an engine count for its own term, and are dropped after the leadership."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from thresher.core.errors import Superseded
from thresher.db import TableName
from thresher.relay.leader.workload import RelayWorkload
from thresher.relay.settings import Settings
from thresher.service import leading
from thresher.service.events.event import REFRESHED, Event, LeaderRefreshed
from thresher.service.leading import Leading
from thresher.service.workload import PeriodicCheck
from thresher.spark.driver.snapshot import EngineState, Snapshot
from thresher.spark.policy import Policy

SETTINGS = Settings(name="r", dsn="", outbox=TableName(table="outbox"), kafka={})


class Engine:
    """An engine that ends at once, and keeps its observer."""

    made: "list[Engine]"
    done = True

    def __init__(self, _pipeline: Any, *, observer: Any, **_: Any) -> None:
        self.observer = observer
        Engine.made.append(self)

    def start(self) -> None: ...

    def snapshot(self) -> Snapshot:
        return Snapshot(pipeline="r", state=EngineState.DONE, error=None, master=None, shards=())

    def wait(self) -> Snapshot:
        # The first engine finds the term reverted by a restore.
        if len(Engine.made) == 1:
            raise Superseded("an older term")
        # The previous engine reports late.
        Engine.made[0].observer(3, "held", {"reasons": {"gone": ["t"]}, "of": 1})
        self.observer(0, REFRESHED, {"leader_id": str(uuid.UUID(int=7))})
        return self.snapshot()


class Term:
    """A term that records its events."""

    alarms: Mapping[str, str] = MappingProxyType({})
    pipeline = SimpleNamespace(policy=Policy())

    def __init__(self, term: str) -> None:
        self.id = term
        self.seen: list[tuple[int, str]] = []

    @contextmanager
    def watch(self) -> Iterator[Sequence[PeriodicCheck]]:
        yield []

    def observe(self, shard: int, event: str, _fields: Mapping[str, Any]) -> None:
        self.seen.append((shard, event))

    def taken_back(self) -> bool:
        return True


def test_late_events_of_an_engine_do_not_reach_later_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "Engine", Engine)
    monkeypatch.setattr(Engine, "made", [], raising=False)
    terms: list[Term] = []

    class Workload(RelayWorkload):
        def take_over(self, term: str, _wanted: Any) -> Any:
            terms.append(Term(term))
            return terms[-1]

    told: list[Event] = []
    Leading(Workload(SETTINGS), announce=told.append).run()
    assert [term.seen for term in terms] == [[(3, "held")], [(0, REFRESHED)]]
    assert told == [LeaderRefreshed(leader_id=uuid.UUID(int=7), shard=0)]
    # The leadership is over.
    Engine.made[1].observer(0, REFRESHED, {"leader_id": str(uuid.UUID(int=8))})
    assert len(told) == 1
