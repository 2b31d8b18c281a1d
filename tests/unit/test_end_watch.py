"""Each watermark carries the time of its request, and no look waits for an answer."""

import itertools
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.processes import eventually
from thresher.kafka.end_watch import EndWatch, EndWatcher, HighWatermark


class Cluster:
    """A cluster that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[dict[int, Future[Any]]] = []

    def poll(self, _: float) -> None:
        pass

    def list_offsets(self, places: Any, **_: Any) -> dict[Any, Future[Any]]:
        answers = {place: Future[Any]() for place in places}
        self.asked.append({place.partition: answer for place, answer in answers.items()})
        return answers

    def answer(self, partition: int, offset: int | None) -> None:
        answer = self.asked[-1][partition]
        if offset is None:
            answer.set_exception(KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)))
        else:
            answer.set_result(SimpleNamespace(offset=offset))


class Watched:
    """A watch, its cluster and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cluster = Cluster()
        self.watch = EndWatch("t", cast("Any", self.cluster), monotonic=lambda: self.now)

    def look(self) -> list[HighWatermark]:
        return self.watch.look([0, 1])


def test_an_answer_carries_the_time_of_its_question() -> None:
    watched = Watched()
    assert watched.look() == []
    watched.now += 0.3
    watched.cluster.answer(0, 7)
    watched.cluster.answer(1, 9)
    assert watched.look() == [HighWatermark(0, 100.0, 7), HighWatermark(1, 100.0, 9)]
    assert watched.look() == []
    assert len(watched.cluster.asked) == 1, "not before the interval is over"
    watched.now += 0.3
    watched.look()
    watched.cluster.answer(0, 8)
    assert watched.look() == [HighWatermark(0, 100.6, 8)]


def test_a_silent_partition_delays_others_by_one_second() -> None:
    watched = Watched()
    watched.look()
    watched.cluster.answer(0, 7)
    assert watched.look() == [HighWatermark(0, 100.0, 7)]
    watched.now += 1.1
    watched.look()
    assert len(watched.cluster.asked) == 2
    watched.cluster.answer(0, 8)
    assert watched.look() == [HighWatermark(0, 101.1, 8)]


def test_a_partition_whose_leader_moves_is_asked_again() -> None:
    watched = Watched()
    watched.look()
    watched.cluster.answer(0, None)
    watched.cluster.answer(1, 9)
    assert watched.look() == [HighWatermark(1, 100.0, 9)]
    watched.now += 0.5
    watched.look()
    assert len(watched.cluster.asked) == 2


class Looked:
    """A watch with an answer at each look."""

    def __init__(self) -> None:
        self.count = itertools.count()
        self.looks = 0
        self.broken = False

    def look(self, partitions: tuple[int, ...]) -> list[HighWatermark]:
        if self.broken:
            raise ValueError("broken")
        self.looks += len(partitions)
        return [HighWatermark(each, float(next(self.count)), 5) for each in partitions]


def test_a_slow_reader_gets_every_answer_in_order() -> None:
    looked = Looked()
    with EndWatcher(cast("EndWatch", looked)) as watcher:
        assert watcher.answers([3]) == []
        # At the fourth look, the watcher has the answers of three.
        eventually(lambda: looked.looks >= 4, 10.0)
        found = watcher.answers([3])
        assert [(each.partition, each.asked_at) for each in found[:3]] == [(3, 0.0), (3, 1.0), (3, 2.0)]
        looked.broken = True

        def raised() -> bool:
            try:
                watcher.answers([3])
            except ValueError:
                return True
            return False

        eventually(raised, 10.0)
        with pytest.raises(ValueError, match="broken"):
            watcher.answers([3])
