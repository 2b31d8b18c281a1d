"""The base of the queue services on Kafka and in memory: queues by id, consumers, metrics, closing."""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

from thresher.observe.metric import Family, Reading
from thresher.queue.configuration import QueueConfig
from thresher.queue.consumer import QueueConsumer
from thresher.queue.metrics import FAMILIES, Figures
from thresher.queue.problem import QueueClosed
from thresher.queue.queue import Queue, queue_id
from thresher.queue.sending.producer import QueueProducer
from thresher.queue.sending.shared_producer import SharedProducer


class BaseQueueService(ABC):
    """The queues of one pair of topics. Safe from any thread; a context manager."""

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self._figures = Figures()
        self._lock = threading.Lock()
        self._closed = False
        self._consumers: list[QueueConsumer] = []

    def queue(self, given: str | bytes) -> Queue:
        """Return a queue by its id, text or bytes.

        A queue is not created on the broker, and costs nothing until it is used.
        """
        return Queue(queue_id(given), self)

    get_or_create_queue = queue

    def families(self) -> tuple[Family, ...]:
        """Return the metric families."""
        return FAMILIES

    def metrics(self) -> Iterator[Reading]:
        """Yield the current values of the metrics. `thresher.observe.prometheus` exports them to Prometheus."""
        return self._figures.read(
            self.config.message_topic, lambda: sum(each.in_progress for each in tuple(self._consumers))
        )

    def make_producer(self, queue: bytes) -> QueueProducer:
        """Return a producer for a queue."""
        with self._lock:
            self._require_open()
            sending = self._sending()
        return QueueProducer(
            queue,
            self.config.message_topic,
            sending,
            self._figures,
            delayed=(self.config.marker_topic, self._marker_partition),
            most_bytes=self.config.max_message_bytes,
            seconds=self.config.send_timeout / 1000,
        )

    def make_consumer(self, queue: bytes) -> QueueConsumer:
        """Return a consumer of a queue."""
        with self._lock:
            self._require_open()
            consumer = self._consumer(queue)
            self._consumers.append(consumer)
        return consumer

    def close(self) -> None:
        """Close every consumer, send the records that producers have queued, and end."""
        with self._lock:
            self._closed = True
            consumers = list(self._consumers)
        for consumer in consumers:
            # All leave at the same time, because each takes as long as its poll.
            consumer.leave(0.0)
        for consumer in consumers:
            consumer.close()
        self._end()

    @property
    def closed(self) -> bool:
        """Whether `close` was called; it may still be running."""
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _sending(self) -> SharedProducer:
        """Return the client that all producers share. The caller holds the service's lock."""

    @abstractmethod
    def _marker_partition(self, queue: bytes) -> int:
        """Return the marker partition for a queue's next messages."""

    @abstractmethod
    def _consumer(self, queue: bytes) -> QueueConsumer:
        """Return a consumer that calls `_forget` when it is closed. The caller holds the service's lock."""

    @abstractmethod
    def _end(self) -> None:
        """Close the parts of the service other than its consumers."""

    def _require_open(self) -> None:
        if self._closed:
            raise QueueClosed("the service was closed")

    def _forget(self, consumer: QueueConsumer) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._consumers.remove(consumer)
