"""The meaning of a producer's errors, from each call of the client."""

import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.group.offsets import GroupOffset
from thresher.kafka.producer_problem import (
    CommitUnknown,
    InitBlocked,
    MemberFenced,
    OffsetsUnknown,
    ProducerFenced,
    ProducerProblem,
    ProducerRefused,
    RecordsUnanswered,
)
from thresher.kafka.refusal import Refusal, fenced, refusal_of
from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer

FENCED = KafkaError(KafkaError._FENCED, "fenced by a newer instance", True)
FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order", True)
DENIED = KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "denied", True)
LOST = KafkaError(KafkaError._TRANSPORT, "lost")
MOVED = KafkaError(KafkaError.ILLEGAL_GENERATION, "the group has moved on")
GROUP_DENIED = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED, "denied")
OFFSETS = [GroupOffset(topic="orders", partition=0, offset=7)]


class Client:
    """A client that raises in one of its calls. It holds one record until the flush."""

    def __init__(self, failing: str, error: KafkaError) -> None:
        self._failing, self._error, self._left = failing, error, 1

    def __len__(self) -> int:
        return self._left

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> int:
            if name == self._failing:
                raise KafkaException(self._error)
            self._left = 0
            return 0

        return call


def producer(failing: str, error: KafkaError) -> TransactionalProducer:
    return TransactionalProducer("orders-0", {}, make=lambda _: Client(failing, error))


# Each method of the producer, with the client's calls that it makes.
CALLS = [
    pytest.param(lambda made: made.flush(), "flush", id="flush"),
    pytest.param(lambda made: made.flush(), "poll", id="poll"),
    pytest.param(lambda made: made.await_sent(0.001), "flush", id="await_sent"),
    pytest.param(lambda made: made.commit(), "poll", id="commit"),
]


@pytest.mark.parametrize(("ask", "failing"), CALLS)
@pytest.mark.parametrize(
    ("error", "kind"),
    [(FENCED, ProducerFenced), (FATAL, ProducerFenced), (DENIED, ProducerRefused), (LOST, ProducerProblem)],
    ids=["fenced", "fatal", "denied", "lost"],
)
def test_every_client_error_says_whether_a_person_must_act(
    ask: Any, failing: str, error: KafkaError, kind: type
) -> None:
    with pytest.raises((ProducerProblem, ProducerRefused)) as caught:
        ask(producer(failing, error))
    assert type(caught.value) is kind
    assert error.str() in str(caught.value)


@pytest.mark.parametrize(("ask", "failing"), CALLS)
@pytest.mark.parametrize(("error", "is_fence"), [(FENCED, True), (FATAL, False), (DENIED, False), (LOST, False)])
def test_a_fence_is_distinguished_from_other_errors(ask: Any, failing: str, error: KafkaError, is_fence: bool) -> None:
    with pytest.raises((ProducerProblem, ProducerRefused)) as caught:
        ask(producer(failing, error))
    assert fenced(caught.value) == is_fence


def test_a_broker_with_a_shorter_transaction_limit_is_refused() -> None:
    too_long = KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT, "the timeout is too long", True)
    with pytest.raises(ProducerRefused, match=r"transaction\.max\.timeout\.ms to at least 15000") as caught:
        producer("init_transactions", too_long).init("orders.progress")
    assert (caught.value.retryable, caught.value.exit_code) == (False, 4)


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        # The error of the other records in a batch when a broker names the record that it refuses.
        (KafkaError._INVALID_DIFFERENT_RECORD, Refusal.CAUSED_BY_ANOTHER),
        # A topic that was deleted while records were queued.
        (KafkaError._UNKNOWN_PARTITION, Refusal.TOPIC),
        (KafkaError.INVALID_RECORD, Refusal.ROW),
        (KafkaError.LEADER_NOT_AVAILABLE, Refusal.TRANSIENT),
    ],
)
def test_an_error_code_maps_to_its_refusal(code: int, refusal: Refusal) -> None:
    assert refusal_of(KafkaError(code)) is refusal


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FENCED, ProducerFenced),
        (FATAL, ProducerFenced),
        (DENIED, ProducerRefused),
        (GROUP_DENIED, ProducerRefused),
        (MOVED, MemberFenced),
        (LOST, OffsetsUnknown),
    ],
    ids=["fenced", "fatal", "denied", "group denied", "member fenced", "lost"],
)
def test_send_offsets_is_fenced_refused_or_unknown(error: KafkaError, kind: type) -> None:
    made = producer("send_offsets_to_transaction", error)
    with pytest.raises((ProducerProblem, ProducerRefused)) as caught:
        made.send_offsets(OFFSETS, b"group")
    assert type(caught.value) is kind
    assert error.str() in str(caught.value)


@pytest.mark.parametrize("failing", ["commit_transaction", "send_offsets_to_transaction"])
def test_a_producer_with_an_uncertain_answer_is_not_reused(failing: str) -> None:
    made = producer(failing, LOST)
    with pytest.raises((CommitUnknown, OffsetsUnknown)):
        made.commit() if failing == "commit_transaction" else made.send_offsets(OFFSETS, b"group")
    for call in (made.begin, made.commit, lambda: made.send_offsets(OFFSETS, b"group")):
        with pytest.raises(ProducerProblem, match="cannot be used again"):
            call()


def test_an_error_only_reported_makes_an_answer_uncertain() -> None:
    class Reporting(Client):
        def __init__(self, properties: dict[str, Any]) -> None:
            super().__init__("", LOST)
            self._report = properties["error_cb"]

        def send_offsets_to_transaction(self, *_: Any) -> None:
            self._report(LOST)

    made = TransactionalProducer("orders-0", {}, make=Reporting)
    with pytest.raises(OffsetsUnknown, match="met an error meanwhile: lost"):
        made.send_offsets(OFFSETS, b"group")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every answer too slow."""
    for bound in ("certain_seconds", "certain_offsets_seconds"):
        monkeypatch.setattr(TransactionTimeouts, bound, property(lambda _: -1.0))


@pytest.mark.usefixtures("slow")
def test_a_slow_commit_is_not_certain() -> None:
    with pytest.raises(CommitUnknown, match="it took"):
        producer("", LOST).commit()


@pytest.mark.usefixtures("slow")
def test_a_producer_with_slow_offsets_commits_and_then_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = producer("", LOST)
    made.begin()
    made.send_offsets(OFFSETS, b"group")
    monkeypatch.setattr(TransactionTimeouts, "certain_seconds", property(lambda _: 60.0))
    made.commit()
    assert made.spent
    with pytest.raises(ProducerProblem, match="spent"):
        made.begin()


def test_sending_no_offsets_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        producer("", LOST).send_offsets([], b"group")
    # The client would ignore this offset and report success.
    with pytest.raises(ValueError, match="0 or more"):
        GroupOffset(topic="orders", partition=0, offset=-1001)


def test_unanswered_offsets_are_unknown() -> None:
    never = threading.Event()

    class Hanging:
        def send_offsets_to_transaction(self, *_: object) -> None:
            never.wait()

    timeouts = TransactionTimeouts(answer_seconds=0.01, socket_seconds=0.02, transaction_seconds=20)
    producer = TransactionalProducer("id", {}, timeouts=timeouts, make=lambda _: Hanging())
    with pytest.raises(OffsetsUnknown, match="did not return"):
        producer.send_offsets([GroupOffset(topic="t", partition=0, offset=1)], b"")
    with pytest.raises(ProducerProblem, match="cannot be used again"):
        producer.commit()
    never.set()


class Deaf(Client):
    """A client that answers no record until the purge, and then reports each as purged."""

    def __init__(self, properties: dict[str, Any]) -> None:
        super().__init__("", LOST)
        self._left, self._told = 3, properties["on_delivery"]

    def flush(self, _: float) -> int:
        return self._left

    def purge(self) -> None:
        purged = KafkaError(KafkaError._PURGE_QUEUE, "purged")
        for topic, partition in (("narrow", 0), ("narrow", 0), ("narrow", -1)):
            self._told(purged, SimpleNamespace(topic=lambda t=topic: t, partition=lambda p=partition: p, key=bytes))
        self._left = 0


def test_a_late_flush_names_the_unanswered_partitions() -> None:
    soon = TransactionTimeouts(flush_seconds=0.01)
    made = TransactionalProducer("orders-0", {}, timeouts=soon, make=Deaf)
    with pytest.raises(
        RecordsUnanswered, match=r"3 records were not answered for in 0\.01 s by narrow, narrow/0"
    ) as it:
        made.flush()
    assert it.value.partitions == (("narrow", -1, 1), ("narrow", 0, 2))
    assert pickle.loads(pickle.dumps(it.value)).partitions == it.value.partitions  # noqa: S301
    with pytest.raises(ProducerProblem, match="cannot be used again"):
        made.begin()


def test_a_transaction_that_does_not_end_blocks_the_next_producer() -> None:
    concurrent = KafkaError(KafkaError.CONCURRENT_TRANSACTIONS, "another operation is ongoing")
    with pytest.raises(InitBlocked, match="orders-0: its last transaction has not ended"):
        producer("init_transactions", concurrent).init("orders.progress")


def test_a_slow_init_is_awaited() -> None:
    class Slow(Client):
        asked = 0

        def init_transactions(self, _: float) -> None:
            self.asked += 1
            if self.asked < 3:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer yet", False, True))

    client = Slow("", LOST)
    TransactionalProducer("orders-0", {}, make=lambda _: client).init("orders.progress")
    assert client.asked == 3
