"""The Kafka clients of queues, made by a factory, so that a program or a test can make them otherwise."""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer

from thresher.kafka.transaction_timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)


# librdkafka's limit. Other programs may write larger messages than we do: what is too large, the broker decides.
LARGEST_BYTES = 1_000_000_000


class Clients(Protocol):
    """Makes clients by their properties."""

    def producer(self, properties: Mapping[str, Any]) -> Producer:
        """Return a producer that is idempotent."""

    def consumer(self, properties: Mapping[str, Any]) -> Consumer:
        """Return a consumer that has subscribed to nothing."""

    def transactional(
        self, transactional_id: str, properties: Mapping[str, Any], timeouts: TransactionTimeouts
    ) -> TransactionalProducer:
        """Return a transactional producer before its `init`."""


class KafkaClients:
    """Confluent's clients."""

    def producer(self, properties: Mapping[str, Any]) -> Producer:
        """Return a producer."""
        return Producer(dict(properties), logger=_logger)

    def consumer(self, properties: Mapping[str, Any]) -> Consumer:
        """Return a consumer."""
        return Consumer(dict(properties), logger=_logger)

    def transactional(
        self, transactional_id: str, properties: Mapping[str, Any], timeouts: TransactionTimeouts
    ) -> TransactionalProducer:
        """Return a transactional producer."""
        return TransactionalProducer(transactional_id, properties, timeouts=timeouts)
