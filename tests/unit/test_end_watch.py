"""Watermarks come with the moment at which they were asked for, and no look waits for an answer."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.end_watch import EndWatch, HighWatermark


class Cluster:
    """Answers when it is told to."""

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


def test_an_answer_has_the_moment_of_its_question() -> None:
    watched = Watched()
    assert watched.look() == []
    watched.now += 0.3
    watched.cluster.answer(0, 7)
    watched.cluster.answer(1, 9)
    assert watched.look() == [HighWatermark(0, 100.0, 7), HighWatermark(1, 100.0, 9)]
    assert watched.look() == []
    assert len(watched.cluster.asked) == 1, "not before it is time"
    watched.now += 0.3
    watched.look()
    watched.cluster.answer(0, 8)
    assert watched.look() == [HighWatermark(0, 100.6, 8)]


def test_a_partition_that_does_not_answer_keeps_the_others_waiting_for_a_second_at_most() -> None:
    watched = Watched()
    watched.look()
    watched.cluster.answer(0, 7)
    assert watched.look() == [HighWatermark(0, 100.0, 7)]
    watched.now += 1.1
    watched.look()
    assert len(watched.cluster.asked) == 2
    watched.cluster.answer(0, 8)
    assert watched.look() == [HighWatermark(0, 101.1, 8)]


def test_a_leader_that_moves_is_asked_again() -> None:
    watched = Watched()
    watched.look()
    watched.cluster.answer(0, None)
    watched.cluster.answer(1, 9)
    assert watched.look() == [HighWatermark(1, 100.0, 9)]
    watched.now += 0.5
    watched.look()
    assert len(watched.cluster.asked) == 2
