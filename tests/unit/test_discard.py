"""How a producer is discarded."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from thresher.kafka.transactional import TransactionalProducer


class Client:
    """Records its calls. One of them may fail."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[str] = []
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> None:
            self.calls.append(name)
            if name == self._failing:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        return call


@pytest.mark.parametrize("failing", ["", "abort_transaction"])
def test_a_discarded_transaction_is_aborted_once_despite_errors(failing: str) -> None:
    client = Client(failing)
    made = TransactionalProducer("orders-0", {}, make=lambda _: client)
    made.discard(abort=True)
    assert client.calls == ["abort_transaction", "purge"]
    made.discard()
    assert client.calls == ["abort_transaction", "purge"], "once"


def test_a_producer_that_failed_aborts_nothing() -> None:
    client = Client()
    TransactionalProducer("orders-0", {}, make=lambda _: client).discard()
    assert client.calls == ["purge"]
