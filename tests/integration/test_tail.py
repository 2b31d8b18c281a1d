"""The committed end of a partition, and what may be cut off before it."""

import time
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.processes import eventually
from thresher.devstack.stack import Stack
from thresher.kafka import committed_tail as module
from thresher.kafka.admin import Admin
from thresher.kafka.committed_tail import CommittedTail, TailGone, TailUnread
from thresher.kafka.transaction_timeouts import TransactionTimeouts
from thresher.kafka.transactional import ProducerProblem, TransactionalProducer

# Longer than any stall of a busy machine.
PATIENT = TransactionTimeouts(
    transaction_seconds=120.0,
    message_seconds=120.0,
    flush_seconds=60.0,
    socket_seconds=120.0,
    answer_seconds=60.0,
    init_seconds=60.0,
)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stalls makes no commit uncertain and ends no transaction: that is not what is shown here."""
    monkeypatch.setattr(TransactionTimeouts, "certain_seconds", property(lambda _: 60.0))
    monkeypatch.setattr(module, "_REQUEST_SECONDS", 60.0)


@pytest.fixture
def topic(stack: Stack, topic_prefix: str) -> str:
    admin, name = Admin(stack.kafka.bootstrap), f"{topic_prefix}tail"
    admin.create_topic(name)
    # A broker may hear of it later than its controller.
    eventually(lambda: admin.topics(name), 60)
    return name


def config(stack: Stack) -> dict[str, Any]:
    return {"bootstrap.servers": stack.kafka.bootstrap}


def opened(stack: Stack, topic: str, name: str) -> TransactionalProducer:
    producer = TransactionalProducer(f"{topic}-{name}", config(stack), timeouts=PATIENT)
    producer.init(topic)
    return producer


def commit(producer: TransactionalProducer, topic: str, *values: bytes) -> None:
    producer.begin()
    for value in values:
        producer.produce([(0, (topic, value, None, 0, 0, None))])
    assert producer.flush() == []
    producer.commit()


def test_the_last_committed_record_is_found_behind_empty_and_aborted_ones(stack: Stack, topic: str) -> None:
    with CommittedTail(topic, 0, config(stack)) as tail:
        assert tail.last() is None
    producer = opened(stack, topic, "a")
    commit(producer, topic, b"first")
    commit(producer, topic, b"", b"second")
    for _ in range(20):
        commit(producer, topic, b"")
    bare = Producer({**config(stack), "transactional.id": f"{topic}-bare"})
    bare.init_transactions(60)
    bare.begin_transaction()
    bare.produce(topic, b"aborted", partition=0)
    bare.flush()
    bare.abort_transaction(60)
    with CommittedTail(topic, 0, config(stack)) as tail:
        assert tail.last() == b"second"
        assert list(tail.whole()) == [b"first", b"second"]


def test_an_open_transaction_is_an_error_where_nobody_can_have_one(
    stack: Stack, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(opened(stack, topic, "a"), topic, b"first")
    other = opened(stack, topic, "b")
    other.begin()
    other.produce([(0, (topic, b"open", None, 0, 0, None))])
    other.flush()
    commit(opened(stack, topic, "c"), topic, b"behind it")
    with monkeypatch.context() as patience:
        # As long as it waits for the end that does not come.
        patience.setattr(module, "_REQUEST_SECONDS", 2.0)
        with CommittedTail(topic, 0, config(stack)) as tail, pytest.raises(TailUnread):
            tail.last()
    with CommittedTail(topic, 0, config(stack), fenced=False) as tail:
        assert tail.last() == b"first"
    other.commit()
    with CommittedTail(topic, 0, config(stack)) as tail:
        assert tail.last() == b"behind it"


def test_trimming_leaves_the_last_committed_record(stack: Stack, topic: str) -> None:
    producer = opened(stack, topic, "a")
    for number in range(5):
        commit(producer, topic, str(number).encode())
    with CommittedTail(topic, 0, config(stack)) as tail:
        assert tail.last() == b"4"
        keep = tail.offset
    time.sleep(0.05)
    moment = int(time.time() * 1000)
    # Newer than the moment, and never committed.
    late = opened(stack, topic, "b")
    late.begin()
    late.produce([(0, (topic, b"never", None, 0, 0, None))])
    late.flush()
    opened(stack, topic, "b")
    Admin(stack.kafka.bootstrap).trim(topic, {0: keep}, moment)
    with CommittedTail(topic, 0, config(stack)) as tail:
        assert list(tail.whole()) == [b"4"]


def test_records_that_were_removed_are_not_taken_for_none(stack: Stack, topic: str) -> None:
    commit(opened(stack, topic, "a"), topic, b"known")
    client = AdminClient(config(stack))
    for future in client.delete_records([TopicPartition(topic, 0, OFFSET_END)], request_timeout=60).values():
        future.result()
    with CommittedTail(topic, 0, config(stack)) as tail, pytest.raises(TailGone, match="lost its records"):
        tail.last()
    # It goes on from there, as one that was adopted would.
    commit(opened(stack, topic, "a"), topic, b"next")
    with CommittedTail(topic, 0, config(stack)) as tail:
        assert tail.last() == b"next"


def test_a_record_that_was_refused_stops_the_commit(stack: Stack, topic: str) -> None:
    producer = TransactionalProducer(f"{topic}-small", {**config(stack), "message.max.bytes": 2000}, timeouts=PATIENT)
    producer.init(topic)
    producer.begin()
    producer.produce([(0, (topic, b"fits", None, 0, 0, None))])
    assert producer.flush() == []
    producer.produce([(1, (topic, b"x" * 5000, None, 0, 0, None))])
    with pytest.raises(ProducerProblem, match="refused"):
        producer.commit()
    opened(stack, topic, "small")
    with CommittedTail(topic, 0, config(stack)) as tail:
        assert tail.last() is None
