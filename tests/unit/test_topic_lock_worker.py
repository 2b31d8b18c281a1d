"""The decisions of a worker with topic locks, and the partitions that its slots need."""

from typing import Any

import pytest

from thresher.db.topic_locks import LockState
from thresher.delivery.fate import Kind
from thresher.delivery.shard.topic_alarm import TopicAlarm
from thresher.kafka.admin import TopicFacts
from thresher.kafka.problem import BrokerLost
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Available, TopicStatus, Unavailable
from thresher.relay.topic_lock import slots
from thresher.relay.topic_lock.missing_topics import has, kind_of, names_of
from thresher.relay.topic_lock.slots import Slots
from thresher.relay.topic_lock.standing import Standing
from thresher.relay.topic_lock.worker import in_order, most_kept, rest_after_own_error


class Cluster:
    """A cluster whose answers about the progress topic are given; the last one stays."""

    def __init__(self, *answers: TopicFacts) -> None:
        self._answers = list(answers)
        self.wanted: list[int] = []
        self.asked = 0

    def topic(self, _: str) -> TopicFacts:
        self.asked += 1
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def widen_topic(self, _: str, partitions: int) -> None:
        self.wanted.append(partitions)


def facts(partitions: int, *leaderless: int) -> TopicFacts:
    return TopicFacts(topic_id="x", partitions=partitions, leaderless=leaderless)


def locked(topic: str, token: int = 1, **state: Any) -> LockState:
    return LockState(topic=topic, token=token, **state)


def test_topics_that_were_missing_are_worked_on_last() -> None:
    states = [locked("away", missing_seconds=5.0), locked("cold"), locked("warm")]
    found = in_order(states, lambda state: state.topic in {"warm", "away"}, lambda _: None)
    assert [each.topic for each in found] == ["warm", "cold", "away"]


def test_names_are_overdue_once_their_grace_is_over() -> None:
    states = [
        locked("orders", missing_seconds=90.0),
        LockState(topic="new"),
        LockState(topic="noted", note=7, missing_seconds=59.0),
        LockState(topic="over", note=8, missing_seconds=60.0),
        LockState(topic="not a topic"),
    ]
    found = names_of(states, 60.0)
    assert (found.new, found.odd, found.notes) == (["new"], ["not a topic"], {"noted": 7, "over": 8})
    assert found.overdue == {"over"}


@pytest.mark.parametrize(
    ("status", "there", "kind"),
    [
        (Available(partitions=1), True, None),
        (Unavailable(refusal=None, why="nobody leads it"), True, None),
        (Unavailable(refusal=Refusal.TRANSIENT, why="no answer"), False, None),
        (Unavailable(refusal=Refusal.TOPIC, why="unknown"), False, Kind.NO_TOPIC),
        (Unavailable(refusal=Refusal.TOPIC_DENIED, why="denied"), False, Kind.NOT_AUTHORISED),
    ],
)
def test_only_a_topic_that_is_there_gets_a_lock(status: TopicStatus, there: bool, kind: Kind | None) -> None:
    assert (has(status), kind_of(status)) == (there, kind)


class Gauges:
    """Takes gauges by name."""

    def __init__(self) -> None:
        self.shown: dict[str, float] = {}

    def count(self, name: str, amount: float = 1) -> None: ...

    def gauge(self, name: str, value: float) -> None:
        self.shown[name] = value


def test_a_free_lock_that_nobody_takes_stands() -> None:
    gauges = Gauges()
    standing = Standing(gauges)
    rest = [locked("held", free=False), locked("failed", troubled=True), locked("away", missing_seconds=1.0)]
    for now, token, shown in [(0.0, 1, 0), (10.0, 1, 10), (20.0, 2, 0), (50.0, 2, 30)]:
        standing.look([locked("orders", token), *rest], now)
        assert gauges.shown == {"standing_seconds": shown}
    standing.look(rest, 60.0)
    assert gauges.shown == {"standing_seconds": 0}


def test_an_alarm_names_fifty_topics_and_counts_the_rest() -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    alarm = TopicAlarm(lambda name, **fields: told.append((name, fields)))
    topics = {f"t{number:03}": "missing" for number in range(600)}
    alarm.raise_for(topics)
    ((name, fields),) = told
    assert (name, len(fields["reasons"]["missing"]), fields["of"]) == ("held", 50, 600)
    alarm.lift(topics)
    assert told[-1] == ("lifted", {"topics": sorted(topics)[:50], "of": 0})


def test_an_error_of_our_own_rests_a_topic_by_tenths() -> None:
    assert [rest_after_own_error(retries, 0.0, 60.0) for retries in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert rest_after_own_error(1000, 0.0, 60.0) == 5.0


def test_a_cause_that_lasts_costs_at_most_half_of_the_time() -> None:
    assert rest_after_own_error(0, 30.0, 60.0) == 30.0
    assert rest_after_own_error(0, 300.0, 60.0) == 60.0


def test_all_workers_of_a_process_keep_a_bounded_number_of_producers() -> None:
    assert [most_kept(workers) * workers for workers in (1, 2, 5, 16, 64)] == [32, 32, 30, 32, 128]


def test_a_slot_waits_for_the_leader_of_its_new_partition() -> None:
    cluster: Any = Cluster(facts(8), facts(8), facts(16, 9, 12), facts(16, 12))
    needed = Slots(cluster, "progress")
    needed.require(3)
    needed.require(9)
    assert cluster.wanted == [16]
    assert cluster.asked == 4


def test_a_slot_without_a_leader_is_an_error_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "_SETTLING_SECONDS", 0.1)
    cluster: Any = Cluster(facts(8, 2))
    needed = Slots(cluster, "progress")
    with pytest.raises(BrokerLost, match="partition 2 of progress cannot be used: nobody leads it yet"):
        needed.require(2)
    needed.require(3)
