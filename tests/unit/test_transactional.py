"""What a producer's errors mean, whichever of the client's calls they come from."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.transactional import ProducerFenced, ProducerProblem, ProducerRefused, TransactionalProducer

FENCED = KafkaError(KafkaError._FENCED, "fenced by a newer instance", True)
FATAL = KafkaError(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "out of order", True)
DENIED = KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "denied", True)
LOST = KafkaError(KafkaError._TRANSPORT, "lost")


class Client:
    """Takes everything, but raises in one of its calls; has a record in its hands until it was flushed."""

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


# What is asked of the producer, and which of the client's calls it makes on the way.
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
def test_whatever_the_client_raises_says_who_has_to_act(ask: Any, failing: str, error: KafkaError, kind: type) -> None:
    with pytest.raises((ProducerProblem, ProducerRefused)) as caught:
        ask(producer(failing, error))
    assert type(caught.value) is kind
    assert error.str() in str(caught.value)


def test_a_broker_that_allows_only_shorter_transactions_is_for_somebody_to_mend() -> None:
    too_long = KafkaError(KafkaError.INVALID_TRANSACTION_TIMEOUT, "the timeout is too long", True)
    with pytest.raises(ProducerRefused, match=r"transaction\.max\.timeout\.ms to at least 15000") as caught:
        producer("init_transactions", too_long).init("orders.progress")
    assert (caught.value.retryable, caught.value.exit_code) == (False, 4)


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        # A broker that names the record it refuses: all others of the batch are told this.
        (KafkaError._INVALID_DIFFERENT_RECORD, Refusal.NEIGHBOUR),
        # A topic that went away under records which are queued.
        (KafkaError._UNKNOWN_PARTITION, Refusal.TOPIC),
        (KafkaError.INVALID_RECORD, Refusal.ROW),
        (KafkaError.LEADER_NOT_AVAILABLE, Refusal.MOMENT),
    ],
)
def test_an_error_says_whose_it_is(code: int, refusal: Refusal) -> None:
    assert refusal_of(KafkaError(code)) is refusal
