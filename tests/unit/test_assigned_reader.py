"""Errors of the client that end a reader, and errors that it survives."""

import pytest
from confluent_kafka import KafkaError

from thresher.kafka.assigned_reader import problem_of
from thresher.kafka.partition_watch import PositionLost
from thresher.kafka.problem import BrokerLost, BrokerRefused


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        # The partition watch reports a topic that is really missing.
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
    ],
)
def test_a_reader_survives_errors_that_the_client_retries(code: int) -> None:
    assert problem_of(KafkaError(code), "orders/0") is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KafkaError(KafkaError._AUTO_OFFSET_RESET), PositionLost),
        (KafkaError(KafkaError.OFFSET_OUT_OF_RANGE), PositionLost),
        (KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), BrokerRefused),
        (KafkaError(KafkaError._AUTHENTICATION), BrokerRefused),
        (KafkaError(KafkaError._FATAL, "fatal", True), BrokerLost),
    ],
)
def test_a_reader_ends_with_an_error_that_needs_a_person(error: KafkaError, kind: type) -> None:
    problem = problem_of(error, "orders/0")
    assert type(problem) is kind
    assert "orders/0" in str(problem)
