"""The factory of the queues' Kafka clients. A program or a test can pass another factory."""

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from confluent_kafka import Consumer, Producer

from thresher.core.secrets import revealed_properties
from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)


# librdkafka's limit. Other programs may write larger messages than ours, so the broker decides what is too large.
LARGEST_BYTES = 1_000_000_000


class Clients(Protocol):
    """Makes clients from their properties."""

    def producer(self, properties: Mapping[str, Any]) -> Producer:
        """Return an idempotent producer."""

    def consumer(self, properties: Mapping[str, Any]) -> Consumer:
        """Return a consumer without a subscription."""

    def transactional(
        self, transactional_id: str, properties: Mapping[str, Any], timeouts: TransactionTimeouts
    ) -> TransactionalProducer:
        """Return a transactional producer before its `init`."""


class KafkaClients:
    """Confluent's clients."""

    def producer(self, properties: Mapping[str, Any]) -> Producer:
        """Return a producer."""
        return Producer(revealed_properties(properties), logger=_logger)

    def consumer(self, properties: Mapping[str, Any]) -> Consumer:
        """Return a consumer."""
        return Consumer(revealed_properties(properties), logger=_logger)

    def transactional(
        self, transactional_id: str, properties: Mapping[str, Any], timeouts: TransactionTimeouts
    ) -> TransactionalProducer:
        """Return a transactional producer."""
        return TransactionalProducer(transactional_id, properties, timeouts=timeouts)
