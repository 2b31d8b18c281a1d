"""One queue of a service: an id, with its producers and consumers."""

from typing import Any, Protocol
from urllib.parse import quote

from thresher.core.errors import InvalidInput
from thresher.queue.consumer import QueueConsumer
from thresher.queue.sending.producer import QueueProducer

# Kafka's tools limit a group's name to 249 characters, and the transactional id is derived from it.
_MOST_BYTES = 200


class Factory(Protocol):
    """Makes producers and consumers."""

    def make_producer(self, queue: bytes) -> QueueProducer:
        """Return a producer."""

    def make_consumer(self, queue: bytes) -> QueueConsumer:
        """Return a consumer that has started to join its group."""


def queue_id(given: str | bytes) -> bytes:
    """Return a queue's id as bytes. Raises `InvalidInput`."""
    try:
        found: Any = given.encode() if isinstance(given, str) else given
    except UnicodeEncodeError:
        found = None  # not encodable as UTF-8
    if not isinstance(found, bytes) or not 1 <= len(found) <= _MOST_BYTES:
        raise InvalidInput(f"a queue's id must be text or bytes, with 1 to {_MOST_BYTES} bytes")
    return found


def group_of(queue: bytes) -> str:
    """Return the name of a queue's consumer group: kafka-mq-go's, with the queue's id percent-encoded."""
    return f"kafka-mq-{quote(queue, safe='')}"


class Queue:
    """A queue. Queues with equal ids are the same queue, in every process."""

    def __init__(self, queue: bytes, factory: Factory) -> None:
        self.id = queue
        self._factory = factory

    def producer(self) -> QueueProducer:
        """Return a producer for this queue."""
        return self._factory.make_producer(self.id)

    def consumer(self) -> QueueConsumer:
        """Return a consumer of this queue. It starts to receive at once."""
        return self._factory.make_consumer(self.id)

    def __repr__(self) -> str:
        return f"<Queue {self.id!r}>"
