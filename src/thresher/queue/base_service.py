"""What a service of queues is, on Kafka or in memory: queues by their ids, its consumers, its figures, and its end."""

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
from thresher.queue.producer import QueueProducer
from thresher.queue.queue import Queue, queue_id
from thresher.queue.shared_producer import SharedProducer


class BaseQueueService(ABC):
    """The queues of one pair of topics. Safe from any thread; a context manager."""

    def __init__(self, config: QueueConfig) -> None:
        self.config = config
        self._figures = Figures()
        self._lock = threading.Lock()
        self._closed = False
        self._consumers: list[QueueConsumer] = []

    def queue(self, given: str | bytes) -> Queue:
        """Return a queue by its id, text or bytes. It needs not be made, and costs nothing until it is used."""
        return Queue(queue_id(given), self)

    get_or_create_queue = queue

    def families(self) -> tuple[Family, ...]:
        """Return the metrics there are."""
        return FAMILIES

    def metrics(self) -> Iterator[Reading]:
        """Yield the metrics as they are now. `thresher.observe.prometheus` shows them to Prometheus."""
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
        """Close every consumer, send what producers have queued, and end."""
        with self._lock:
            self._closed = True
            consumers = list(self._consumers)
        for consumer in consumers:
            # All at once: each takes as long as its poll.
            consumer.leave(0.0)
        for consumer in consumers:
            consumer.close()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _sending(self) -> SharedProducer:
        """Return what all producers send by. The service's lock is held."""

    @abstractmethod
    def _marker_partition(self, queue: bytes) -> int:
        """Return which partition has the markers of a queue's next messages."""

    @abstractmethod
    def _consumer(self, queue: bytes) -> QueueConsumer:
        """Return a consumer that has `_forget` called once it is closed. The service's lock is held."""

    @abstractmethod
    def _end(self) -> None:
        """End what the service has besides its consumers."""

    def _require_open(self) -> None:
        if self._closed:
            raise QueueClosed("the service was closed")

    def _forget(self, consumer: QueueConsumer) -> None:
        with self._lock, contextlib.suppress(ValueError):
            self._consumers.remove(consumer)
