"""A group's offsets in a transaction: committed with the records, not committed, or reported as unknown."""

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from tests.processes import eventually
from tests.servers import create_topic
from thresher.devstack.stack import Stack
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import CommittedTail
from thresher.kafka.group.offsets import GroupOffset, group_metadata, group_offsets
from thresher.kafka.problem import BrokerLost
from thresher.kafka.producer_problem import MemberFenced, OffsetsUnknown, ProducerFenced, ProducerProblem
from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer
from thresher.testing.proxy import Api, Cut, Drop, Hold, KafkaProxy

LONG = TransactionTimeouts.within(60.0)
# The timeouts of a queue's transactions.
SHORT = TransactionTimeouts.within(5.0)


class Place:
    """The topic and group of one test, its producers, and the committed offsets and records."""

    def __init__(self, stack: Stack, name: str, address: str | None = None) -> None:
        self.topic, self.group = f"{name}-records", f"{name}-group"
        self.direct = {"bootstrap.servers": stack.kafka.bootstrap}
        self.config = {"bootstrap.servers": address or stack.kafka.bootstrap}
        self.admin = Admin(stack.kafka.bootstrap)
        create_topic(self.admin, self.topic)
        # This first request creates the group's coordinator, so that finding it takes no time later.
        assert self.committed() == {}

    def producer(self, timeouts: TransactionTimeouts = LONG, make: Any = None) -> TransactionalProducer:
        """Return a new producer, which fences the previous one."""
        made = TransactionalProducer(f"{self.group}-producer", self.config, timeouts=timeouts, make=make)
        made.init(self.topic)
        return made

    def write(self, producer: TransactionalProducer, value: bytes) -> None:
        """Begin a transaction and produce a record."""
        producer.begin()
        producer.produce([(0, (self.topic, value, None, 0, 0, None))])
        assert producer.flush() == []

    def send(self, producer: TransactionalProducer, offset: int, metadata: str = "") -> None:
        """Add an offset of the group to the transaction. The group has no member."""
        sent = GroupOffset(topic=self.topic, partition=0, offset=offset, metadata=metadata)
        producer.send_offsets([sent], group_metadata(self.direct, self.group))

    def committed(self, timeout_seconds: float = 60.0) -> dict[int, GroupOffset]:
        """Return the group's offsets."""
        return group_offsets(self.direct, self.group, self.topic, [0], timeout_seconds=timeout_seconds)

    def offset(self) -> int | None:
        """Return the group's offset."""
        found = self.committed().get(0)
        return None if found is None else found.offset

    def records(self) -> list[bytes]:
        """Return the values of the committed records."""
        with CommittedTail(self.topic, 0, self.direct) as tail:
            return list(tail.whole())


def silent(asked: dict[str, Any]) -> Producer:
    """Return a client that reports no errors, as in a cluster, where one broken connection is not an error."""
    return Producer({**asked, "error_cb": lambda _: None})


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits for certain answers, so that a stalling machine makes no answer uncertain."""
    for bound in ("certain_seconds", "certain_offsets_seconds"):
        monkeypatch.setattr(TransactionTimeouts, bound, property(lambda _: 60.0))


@pytest.fixture
def place(stack: Stack, topic_prefix: str, patient: None) -> Place:
    return Place(stack, f"{topic_prefix}offsets")


@pytest.fixture
def wired(stack: Stack, topic_prefix: str, shared_proxy: KafkaProxy) -> Place:
    return Place(stack, f"{topic_prefix}wired", shared_proxy.address)


def test_offsets_are_committed_with_the_records(place: Place) -> None:
    producer = place.producer()
    place.write(producer, b"first")
    place.send(producer, 5, "hand-off 1")
    # Until the transaction has ended, the broker returns no offset, because it may still change.
    with pytest.raises(BrokerLost, match="offsets of the group"):
        place.committed(timeout_seconds=1.0)
    producer.commit()
    assert place.committed() == {0: GroupOffset(topic=place.topic, partition=0, offset=5, metadata="hand-off 1")}
    assert place.records() == [b"first"]
    place.write(producer, b"second")
    place.send(producer, 9)
    producer.commit()
    assert place.offset() == 9


def test_offsets_are_not_committed_without_the_records(place: Place) -> None:
    producer = place.producer()
    place.write(producer, b"first")
    place.send(producer, 5)
    producer.commit()
    place.write(producer, b"never")
    place.send(producer, 6)
    producer.discard()
    place.producer()
    assert place.offset() == 5
    assert place.records() == [b"first"]


def test_offsets_are_not_committed_after_the_transaction_timeout(place: Place) -> None:
    producer = place.producer(SHORT)
    place.write(producer, b"never")
    place.send(producer, 5)
    # The broker checks for expired transactions every 10 s.
    eventually(lambda: place.committed() == {}, 60)
    assert place.records() == []
    with pytest.raises((ProducerFenced, ProducerProblem)):
        producer.commit()


def test_a_fenced_producer_sends_no_offsets(place: Place) -> None:
    old = place.producer()
    place.write(old, b"old")
    successor = place.producer()
    with pytest.raises(ProducerFenced):
        place.send(old, 5)
    place.write(successor, b"new")
    place.send(successor, 7)
    successor.commit()
    assert place.offset() == 7
    assert place.records() == [b"new"]


def test_sent_offsets_are_fenced_with_the_commit(place: Place) -> None:
    old = place.producer()
    place.write(old, b"old")
    place.send(old, 5)
    place.producer()
    with pytest.raises(ProducerFenced):
        old.commit()
    assert place.committed() == {}
    assert place.records() == []


def test_a_member_that_has_left_its_group_sends_no_offsets(place: Place) -> None:
    member = Consumer({**place.direct, "group.id": place.group, "enable.auto.commit": False})
    member.subscribe([place.topic])
    eventually(lambda: member.poll(0.1) is not None or member.assignment(), 60)
    with_the_batch: Any = member.consumer_group_metadata()
    member.close()
    producer = place.producer()
    place.write(producer, b"never")
    with pytest.raises(MemberFenced):
        producer.send_offsets([GroupOffset(topic=place.topic, partition=0, offset=5)], with_the_batch)
    with pytest.raises(ProducerProblem, match="cannot be used again"):
        producer.commit()
    place.producer()
    assert place.committed() == {}


APIS = pytest.mark.parametrize("api", [Api.ADD_OFFSETS_TO_TXN, Api.TXN_OFFSET_COMMIT], ids=["add", "commit"])


@APIS
def test_a_lost_answer_leaves_the_offsets_unknown(wired: Place, shared_proxy: KafkaProxy, api: Api) -> None:
    producer = wired.producer(SHORT)
    wired.write(producer, b"never")
    lost = shared_proxy.on_answer(api, Drop(), times=1)
    began = time.monotonic()
    with pytest.raises(OffsetsUnknown):
        wired.send(producer, 5)
    assert lost.matched == 1
    assert time.monotonic() - began < 20
    with pytest.raises(ProducerProblem, match="cannot be used again"):
        producer.commit()
    wired.producer()
    assert wired.committed() == {}
    assert wired.records() == []


@APIS
def test_a_cut_off_answer_leaves_offsets_or_producer_in_doubt(
    wired: Place, shared_proxy: KafkaProxy, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransactionTimeouts, "certain_seconds", property(lambda _: 60.0))
    producer = wired.producer()
    wired.write(producer, b"record")
    lost = shared_proxy.on_answer(api, Cut(), times=1)
    try:
        # The client may or may not report the broken connection. It repeats the request in both cases.
        wired.send(producer, 5)
    except OffsetsUnknown:
        with pytest.raises(ProducerProblem, match="cannot be used again"):
            producer.commit()
        wired.producer()
        assert (wired.committed(), wired.records()) == ({}, [])
    else:
        assert producer.spent
        producer.commit()
        assert (wired.offset(), wired.records()) == (5, [b"record"])
    assert lost.matched == 1


def test_late_offsets_do_not_touch_the_next_transaction(
    wired: Place, shared_proxy: KafkaProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = wired.producer(make=silent)
    wired.write(producer, b"first")
    late = shared_proxy.on_request(Api.TXN_OFFSET_COMMIT, Hold(hang_up=True), times=1)
    # The client repeats the request by itself, and succeeds.
    wired.send(producer, 5)
    assert late.matched == 1
    monkeypatch.setattr(TransactionTimeouts, "certain_seconds", property(lambda _: 60.0))
    producer.commit()
    with pytest.raises(ProducerProblem, match="spent"):
        producer.begin()
    monkeypatch.setattr(TransactionTimeouts, "certain_offsets_seconds", property(lambda _: 60.0))
    successor = wired.producer()
    wired.write(successor, b"next")
    wired.send(successor, 20)
    answers = shared_proxy.answers[Api.TXN_OFFSET_COMMIT]
    late.release()
    eventually(lambda: shared_proxy.answers[Api.TXN_OFFSET_COMMIT] > answers or None, 60)
    successor.commit()
    assert wired.offset() == 20
    assert wired.records() == [b"first", b"next"]
