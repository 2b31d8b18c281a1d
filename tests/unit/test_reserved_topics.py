"""Which topics are reserved is asked once for many names, and not by reading records."""

from collections.abc import Collection
from typing import Any

import pytest
from confluent_kafka import KafkaError

from thresher.delivery.progress_topic.reserved_topics import ReservedTopics
from thresher.delivery.progress_topic.topic import KEPT
from thresher.kafka.problem import BrokerLost

FOR_EVER = {**KEPT, "max.message.bytes": "1"}
FOR_A_WEEK = {**KEPT, "retention.ms": "604800000"}


class Cluster:
    """Topics with their configurations or errors, and the requests for them."""

    def __init__(self, **topics: dict[str, str] | int) -> None:
        self.topics, self.asked = topics, [0]

    def topic_configs(self, names: Collection[str]) -> dict[str, Any]:
        self.asked.append(len(names))
        found = {name: self.topics.get(name.partition(".")[0], KafkaError.UNKNOWN_TOPIC_OR_PART) for name in names}
        return {name: KafkaError(each) if isinstance(each, int) else each for name, each in found.items()}


def reserved(cluster: Cluster) -> ReservedTopics:
    return ReservedTopics("own.progress", {}, lambda _: cluster)  # type: ignore[arg-type,return-value]


def test_only_topics_that_keep_their_records_for_ever_are_reserved() -> None:
    found = reserved(Cluster(theirs=FOR_EVER, film=FOR_A_WEEK, hidden=KafkaError.TOPIC_AUTHORIZATION_FAILED))
    names = {"own.progress", "theirs.progress", "film.progress", "hidden.progress", "missing.progress", "orders"}
    assert found(names) == {"own.progress", "theirs.progress"}


def test_other_names_cost_no_request() -> None:
    cluster = Cluster()
    assert reserved(cluster)({"orders", "progress"}) == frozenset()
    assert cluster.asked == [0]


def test_any_number_of_names_is_asked_for_in_few_requests_and_bounded_memory() -> None:
    cluster = Cluster()
    check = reserved(cluster)
    names = {f"n{number}.progress" for number in range(25_000)}
    assert check(names) == frozenset()
    assert (max(cluster.asked), len(cluster.asked)) == (1_000, 26)
    assert len(check._known) <= 10_000


def test_an_answer_is_kept_for_a_while() -> None:
    cluster = Cluster(theirs=FOR_EVER)
    check = reserved(cluster)
    for _ in range(3):
        assert check(["theirs.progress"]) == {"theirs.progress"}
    assert cluster.asked == [0, 1]


def test_a_broker_that_does_not_answer_decides_nothing() -> None:
    with pytest.raises(BrokerLost, match=r"whether theirs\.progress holds progress is not known"):
        reserved(Cluster(theirs=KafkaError._TIMED_OUT))(["theirs.progress"])
