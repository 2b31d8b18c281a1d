"""Which topics and rows are at fault when partitions do not answer or refuse records."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from thresher.delivery.effects import Fault
from thresher.delivery.faults import Faults
from thresher.delivery.row import Record, Row, RowList
from thresher.kafka.problem import BrokerLost
from thresher.kafka.producer_problem import RecordsUnanswered
from thresher.kafka.refusal import Refusal
from thresher.kafka.topic_status import Available, TopicStatus, Unavailable
from thresher.kafka.transactional import Undelivered

LACKING = Unavailable(refusal=None, why="narrow: its partition 0 has 2 in-sync replicas and needs 3")


def faults(unhealthy: Collection[str] = (), *, lenient: bool = False) -> Faults:
    def ask(topics: Collection[str]) -> dict[str, TopicStatus]:
        return {topic: LACKING if topic in unhealthy else Available(partitions=1) for topic in topics}

    topics: Any = SimpleNamespace(ask=ask, forget=lambda *_: None)
    return Faults(progress="progress", topics=topics, lenient=lenient)


def silence(*topics: str) -> RecordsUnanswered:
    return RecordsUnanswered("no answer", [(topic, 0, 7) for topic in topics])


@pytest.mark.parametrize("lenient", [False, True])
def test_a_silent_partition_is_its_topics_fault(lenient: bool) -> None:
    found = faults(lenient=lenient).of_silence(silence("narrow"))
    assert found == [Fault(kind=None, why="no answer from narrow/0 for 7 records in time", topic="narrow")]


def test_an_unhealthy_partition_is_named_with_its_reason() -> None:
    assert faults({"narrow"}).of_silence(silence("narrow")) == [Fault(kind=None, why=LACKING.why, topic="narrow")]


def test_without_answers_only_unhealthy_topics_are_at_fault() -> None:
    found = faults({"narrow"}).of_silence(silence("good", "narrow", "progress"))
    assert [fault.topic for fault in found] == ["narrow"]


def test_without_answers_no_healthy_topic_is_at_fault() -> None:
    assert faults().of_silence(silence("good", "narrow", "progress")) == [Fault(kind=None, why="no answer")]


def test_a_transient_record_error_is_its_topics_fault() -> None:
    late = Undelivered(refusal=Refusal.TRANSIENT, why="timed out", topic="narrow")
    assert faults().of([late], RowList()) == [Fault(kind=None, why="narrow: timed out", topic="narrow")]


def sent(id_: int, key: bytes, timestamp: int = 0) -> Row:
    return Row(id_, 0, "t", key, Record("t", b"v", key, -1, timestamp, None))


def not_delivered(refusal: Refusal, *keys: bytes) -> list[Undelivered]:
    return [Undelivered(refusal=refusal, why=str(refusal), topic="t", key=key) for key in keys]


def test_a_record_with_a_refused_timestamp_is_found_by_key() -> None:
    rows = RowList([sent(1, b"a"), sent(2, b"b"), sent(3, b"b", 5), sent(4, b"c", 5)])
    undelivered = not_delivered(Refusal.CAUSED_BY_ANOTHER, b"a", b"b", b"c") + not_delivered(Refusal.TIME, b"b")
    # Two rows have this key; the other row's timestamp may come from the clock.
    found = faults().of(undelivered, rows)
    assert [(fault.place, fault.passing, fault.doubtful) for fault in found] == [(1, True, True), (2, True, True)]
    (alone,) = faults().of(not_delivered(Refusal.TIME, b"c"), rows)
    assert (alone.place, alone.passing, alone.doubtful) == (3, True, False)
    (given,) = faults().of(not_delivered(Refusal.TIME, b"a"), rows)
    assert (given.place, given.doubtful) == (0, True)


def test_a_refused_time_that_the_relay_gave_is_its_topics_fault() -> None:
    rows = RowList([sent(1, b"a"), Row(2, 0, "other", b"b", Record("other", b"v", b"b", -1, 5, None))])
    (found,) = faults().of(not_delivered(Refusal.TIME, b"a"), rows)
    assert (found.topic, found.kind, found.place) == ("t", None, None)
    assert "message.timestamp.before.max.ms" in found.why
    progress = Undelivered(refusal=Refusal.TIME, why="too old", topic="progress")
    with pytest.raises(BrokerLost, match="clocks"):
        faults().of([progress], rows)


def test_several_refused_records_are_each_tried_alone() -> None:
    rows = RowList([sent(1, b"a", 5), sent(2, b"b"), sent(3, b"b", 5), sent(4, b"c", 5)])
    undelivered = not_delivered(Refusal.CAUSED_BY_ANOTHER, b"c") + not_delivered(Refusal.ROW, b"a", b"b")
    found = faults().of(undelivered, rows)
    assert [(fault.place, fault.doubtful) for fault in found] == [(0, True), (1, True), (2, True)]


def test_very_many_refused_records_are_not_named() -> None:
    rows = RowList([sent(id_, b"a", 5) for id_ in range(200)])
    found = faults().of(not_delivered(Refusal.TIME, b"a"), rows)
    assert [fault.place for fault in found] == [None]
