"""The decisions of a worker with topic locks, and the partitions that its slots need."""

from typing import Any

import pytest

from thresher.kafka.admin import TopicFacts
from thresher.kafka.problem import BrokerLost
from thresher.relay.topic_lock import slots
from thresher.relay.topic_lock.slots import Slots
from thresher.relay.topic_lock.worker import most_kept, rest_after_own_error


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
