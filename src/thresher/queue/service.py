"""Any number of queues on one pair of Kafka topics, with one producer for messages and one for markers.

`QueueService` needs no Spark, no Java and no database. The tracker, a separate process, redelivers unacked messages.
"""

import secrets
from collections.abc import Mapping
from functools import partial
from typing import Any

from confluent_kafka import Producer

from thresher.kafka.fetch_sizes import bounded_fetches
from thresher.kafka.partition_ends import OpenTransactions
from thresher.kafka.refusal import RETRIES
from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.queue.base_service import BaseQueueService
from thresher.queue.buffer import ReceiveBuffer
from thresher.queue.clients import LARGEST_BYTES, Clients, KafkaClients
from thresher.queue.configuration import HandOff, QueueConfig, configured
from thresher.queue.consumer import QueueConsumer
from thresher.queue.hand_off.member import MemberThread, Writing
from thresher.queue.hand_off.starting_offsets import StartingOffsets
from thresher.queue.hand_off.transactions import Transactions
from thresher.queue.hand_off.two_steps import TwoSteps
from thresher.queue.in_progress import InProgress
from thresher.queue.keep_alive import KeepAlive
from thresher.queue.markers import Markers
from thresher.queue.queue import group_of
from thresher.queue.sending.shared_producer import SharedProducer

# The maximum time that a transaction is open: meanwhile, later markers of all queues are invisible to readers.
_TIMEOUTS = TransactionTimeouts.within(5.0)
# The overhead of a record, in addition to its message; and the additional overhead of a Start.
_RECORD_BYTES, _START_BYTES = 1_024, 16_384
# An ack is retried as long as the process lives: after an outage of the broker, the tracker waits before it redelivers.
_MARKER_MS = 43_200_000
# Markers are small and no more than the messages in progress, so no caller has to wait for room.
_MOST_MARKERS = 10_000_000
# A sender waits for room beyond this: more futures in flight cost more time than they save.
_MOST_SENDS = 20_000
# After an outage of the broker, KeepAlives must arrive before the tracker's grace period ends.
_RECONNECT = {"reconnect.backoff.max.ms": 1_000}
_PRODUCER = {**_RECONNECT, "linger.ms": 2, "compression.type": "lz4", "log_level": 2}
_CONSUMER = {
    **_RECONNECT,
    # New partitions are found within this time.
    "topic.metadata.refresh.interval.ms": 10_000,
    "log_level": 2,
}


class QueueService(BaseQueueService):
    """The queues of one pair of topics. Safe from any thread; a context manager."""

    def __init__(self, config: QueueConfig | Mapping[str, Any], *, clients: Clients | None = None) -> None:
        """`clients` makes the Kafka clients. Contacts no server. Raises `ConfigurationInvalid`."""
        super().__init__(configured(config))
        self._clients: Clients = clients or KafkaClients()
        self._sends: SharedProducer | None = None
        self._marks: SharedProducer | None = None
        self._markers: Markers | None = None
        self._keep_alive = KeepAlive(self.config.redelivery_seconds)

    def _sending(self) -> SharedProducer:
        if self._sends is None:
            self._sends = SharedProducer("sending", self._sending_producer)
        return self._sends

    def _marker_partition(self, queue: bytes) -> int:
        with self._lock:
            self._require_open()
            _, markers = self._marking()
        return markers.partition(queue)

    def _marking(self) -> tuple[SharedProducer, Markers]:
        """Return the producer and the sender that all markers share. The caller holds the service's lock."""
        if self._marks is None or self._markers is None:
            self._marks = SharedProducer("marking", self._marking_producer)
            self._markers = Markers(
                self._marks,
                self.config.marker_topic,
                self._figures,
                confirm_seconds=self.config.send_timeout / 1000 + 5.0,
            )
        return self._marks, self._markers

    def _consumer(self, queue: bytes) -> QueueConsumer:
        marks, markers = self._marking()
        progress = InProgress(queue, markers, self._figures, redelivery_seconds=self.config.redelivery_seconds)
        buffer = ReceiveBuffer()
        member = MemberThread(
            queue,
            self.config,
            partial(self._group_client, queue),
            self._writing(queue, markers, marks),
            StartingOffsets(queue, group_of(queue), self.config, marks),
            buffer,
            progress,
            self._figures,
        )
        return QueueConsumer(buffer, progress, member, markers, self._keep_alive, forget=self._forget)

    def _end(self) -> None:
        self._keep_alive.close()
        for producer in (self._sends, self._marks):
            if producer is not None:
                producer.close(self.config.send_timeout / 1000)

    def _writing(self, queue: bytes, markers: Markers, marking: SharedProducer) -> Writing:
        if self.config.handoff is HandOff.AT_LEAST_ONCE:
            return TwoSteps(queue, self.config, markers, marking)
        # The id is unique to this consumer, so only the broker's time-out or our own `renew` ends its transactions.
        transactional_id = f"{group_of(queue)}-{secrets.token_hex(8)}"
        return Transactions(queue, transactional_id, self.config, markers, self._transactional)

    def _transactional(self, transactional_id: str) -> Any:
        properties = {**self.config.clients, **self.config.producer, "message.max.bytes": LARGEST_BYTES}
        return self._clients.transactional(transactional_id, properties, _TIMEOUTS)

    def _sending_producer(self) -> Producer:
        most: dict[str, Any] = {
            "queue.buffering.max.messages": _MOST_SENDS,
            **self.config.producer,
            **RETRIES,
            # After a time-out, a disconnected client is replaced before it can reconnect and send again.
            "reconnect.backoff.ms": 500,
        }
        # A message with a delay is sent as a Start.
        largest = self.config.max_message_bytes + _RECORD_BYTES + _START_BYTES
        return self._producer("random", self.config.send_timeout, largest, most)

    def _marking_producer(self) -> Producer:
        most: dict[str, Any] = {"queue.buffering.max.messages": _MOST_MARKERS}
        return self._producer("murmur2_random", _MARKER_MS, LARGEST_BYTES, most)

    def _producer(self, partitioner: str, timeout_ms: int, most_bytes: int, more: Mapping[str, Any]) -> Producer:
        return self._clients.producer(
            {
                **_PRODUCER,
                **self.config.clients,
                **self.config.producer,
                **more,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": partitioner,
                "message.timeout.ms": timeout_ms,
                "message.max.bytes": most_bytes,
            }
        )

    def _group_client(self, queue: bytes) -> Any:
        hidden = OpenTransactions(f"a consumer of {queue!r}", lambda: self._figures.count("hidden"))
        return self._clients.consumer(
            {
                **hidden.watching(bounded_fetches({**_CONSUMER, **self.config.clients, **self.config.consumer})),
                "group.id": group_of(queue),
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "partition.assignment.strategy": "range,roundrobin",
            }
        )
