"""The queues of one pair of topics, for coroutines."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol

from thresher.queue import queue as blocking_queue
from thresher.queue import service as blocking_service
from thresher.queue.aio.blocking_call import begin, result_of
from thresher.queue.aio.consumer import QueueConsumer
from thresher.queue.aio.producer import QueueProducer, room_for_sends
from thresher.queue.configuration import QueueConfig
from thresher.queue.problem import QueueClosed


class BlockingService(Protocol):
    """A service whose calls block: `thresher.queue.QueueService`, or `MemoryQueueService`."""

    config: QueueConfig

    def queue(self, given: str | bytes) -> blocking_queue.Queue:
        """Return a queue."""

    def close(self) -> None:
        """Close everything."""


class QueueService:
    """The queues of one pair of topics, for asyncio. An asynchronous context manager."""

    def __init__(self, given: QueueConfig | Mapping[str, Any] | BlockingService, *, owned: bool = False) -> None:
        """Contacts no server. Raises `ConfigurationInvalid`.

        `close` also closes the service that was made from a configuration, or that was passed with `owned`.
        """
        self._owned = owned or isinstance(given, QueueConfig | Mapping)
        self._service: BlockingService = (
            blocking_service.QueueService(given) if isinstance(given, QueueConfig | Mapping) else given
        )
        self.config = self._service.config
        self._room = asyncio.Semaphore(room_for_sends(self.config))
        self._producers: set[QueueProducer] = set()
        self._consumers: set[QueueConsumer] = set()
        self._closed = False

    def queue(self, given: str | bytes) -> "Queue":
        """Return a queue by its id, text or bytes.

        A queue is not created on the broker, and costs nothing until it is used.
        """
        return Queue(self._service.queue(given), self)

    get_or_create_queue = queue

    def make_producer(self, queue: blocking_queue.Queue) -> QueueProducer:
        """Return a producer for a queue."""
        self._require_open()
        producer = QueueProducer(queue.producer(), self._room, self._producers.discard)
        self._producers.add(producer)
        return producer

    def make_consumer(self, queue: blocking_queue.Queue) -> QueueConsumer:
        """Return a consumer of a queue."""
        self._require_open()
        consumer = QueueConsumer(queue.consumer(), self._consumers.discard)
        self._consumers.add(consumer)
        return consumer

    async def close(self) -> None:
        """Close every consumer and producer made here. A service that was passed in stays open, unless `owned`."""
        self._closed = True
        try:
            await asyncio.gather(*(producer.finish() for producer in self._producers))
        finally:
            # In one thread, so that every step runs even if this coroutine is cancelled.
            close = partial(self._close, tuple(self._consumers), tuple(self._producers))
            closing = begin(close, outlives_loop=True)
        await result_of(closing)
        self._producers.clear()
        self._consumers.clear()

    async def __aenter__(self) -> "QueueService":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _close(self, consumers: Iterable[QueueConsumer], producers: Iterable[QueueProducer]) -> None:
        """Close everything. An error of one does not keep the others open."""
        with ExitStack() as closing:
            if self._owned:
                closing.callback(self._service.close)
            for producer in producers:
                closing.callback(producer.blocking.close)
            for consumer in consumers:
                closing.callback(consumer.blocking.close)
                # All leave at the same time, because each takes as long as its poll.
                consumer.blocking.leave(0.0)

    def _require_open(self) -> None:
        if self._closed:
            raise QueueClosed("the service was closed")


class Queue:
    """A queue. Queues with equal ids are the same queue, in every process."""

    def __init__(self, queue: blocking_queue.Queue, service: QueueService) -> None:
        self.id = queue.id
        self._queue, self._service = queue, service

    def producer(self) -> QueueProducer:
        """Return a producer for this queue."""
        return self._service.make_producer(self._queue)

    def consumer(self) -> QueueConsumer:
        """Return a consumer of this queue. It starts to receive at once."""
        return self._service.make_consumer(self._queue)

    def __repr__(self) -> str:
        return f"<Queue {self.id!r}>"
