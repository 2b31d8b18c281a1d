"""Timeouts of transactions: the defaults, and shorter ones that the client accepts."""

import pytest
from confluent_kafka import Producer

from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.kafka.transactional import properties


def test_the_default_timeouts_stay() -> None:
    assert TransactionTimeouts().properties() == {
        "transaction.timeout.ms": 15_000,
        "message.timeout.ms": 12_000,
        "socket.timeout.ms": 10_000,
        "retry.backoff.ms": 2_000,
        "retry.backoff.max.ms": 2_000,
    }
    assert TransactionTimeouts().certain_seconds == 1.5


@pytest.mark.parametrize("seconds", [2.0, 5.0, 15.0, 60.0])
def test_the_client_accepts_transactions_of_other_lengths(seconds: float) -> None:
    timeouts = TransactionTimeouts.within(seconds)
    asked = properties("id", {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, timeouts)
    assert asked["transaction.timeout.ms"] == seconds * 1000
    # The client checks the properties when it is created.
    Producer(asked)


def test_an_answer_is_certain_only_before_the_client_repeats() -> None:
    for seconds in (2.0, 5.0, 15.0):
        timeouts = TransactionTimeouts.within(seconds)
        assert timeouts.certain_seconds < 0.8 * timeouts.properties()["retry.backoff.ms"] / 1000
        # librdkafka's own wait before it repeats TxnOffsetCommit.
        assert timeouts.certain_offsets_seconds < 0.5


@pytest.mark.parametrize(
    "changes",
    [{"answer_seconds": 10.0}, {"socket_seconds": 15.5}, {"message_seconds": 16.0}, {"flush_seconds": 12.5}],
)
def test_timeouts_in_the_wrong_order_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="does not hold"):
        TransactionTimeouts(**changes)
