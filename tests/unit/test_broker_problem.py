"""Error texts and error types for a failing broker."""

import pytest
from confluent_kafka import KafkaError

from thresher.kafka.problem import BrokerLost, BrokerRefused, broker_problem, reason_of

REFUSED = "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused"


@pytest.mark.parametrize(
    "after", ["", " (after 0ms in state CONNECT)", " (after 21ms in state CONNECT, 29 identical error(s) suppressed)"]
)
def test_an_unreachable_broker_is_always_reported_alike(after: str) -> None:
    told = reason_of(KafkaError(KafkaError._TRANSPORT, REFUSED + after))
    assert told == f"{REFUSED}; see that the broker runs, and that bootstrap.servers names it"


def test_the_reason_of_a_broker_that_answered_is_its_text() -> None:
    assert reason_of(KafkaError(KafkaError.NOT_CONTROLLER, "not the controller (5)")) == "not the controller (5)"


def test_the_error_type_says_whether_a_retry_helps() -> None:
    lost = broker_problem("it cannot be read", KafkaError(KafkaError._TRANSPORT, REFUSED))
    assert (type(lost), str(lost).startswith(f"it cannot be read: {REFUSED}; see that")) == (BrokerLost, True)
    refused = broker_problem("it cannot be read", KafkaError(KafkaError._AUTHENTICATION, "no"))
    assert (type(refused), str(refused).endswith("mend the credentials, or grant the permission")) == (
        BrokerRefused,
        True,
    )
