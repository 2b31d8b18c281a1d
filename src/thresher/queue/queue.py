"""One queue of a service: an id, which costs nothing, and its producers and consumers."""

from typing import Any, Protocol
from urllib.parse import quote

from thresher.core.errors import InvalidInput
from thresher.queue.consumer import QueueConsumer
from thresher.queue.producer import QueueProducer

# A group's name has 249 characters at most in tools of Kafka's, and a transactional id is made from it.
_MOST_BYTES = 200


class Factory(Protocol):
    """Makes what queues need."""

    def make_producer(self, queue: bytes) -> QueueProducer:
        """Return a producer."""

    def make_consumer(self, queue: bytes) -> QueueConsumer:
        """Return a consumer that has begun to join its group."""


def queue_id(given: str | bytes) -> bytes:
    """Return a queue's id as bytes. Raises `InvalidInput`."""
    try:
        found: Any = given.encode() if isinstance(given, str) else given
    except UnicodeEncodeError:
        found = None  # text that has no UTF-8
    if not isinstance(found, bytes) or not 1 <= len(found) <= _MOST_BYTES:
        raise InvalidInput(f"the id of a queue is text or bytes, of 1 to {_MOST_BYTES} bytes")
    return found


def group_of(queue: bytes) -> str:
    """Return the name of a queue's consumer group, as kafka-mq-go has it, percent-encoded."""
    return f"kafka-mq-{quote(queue, safe='')}"


class Queue:
    """A queue. Equal ids are the same queue, whoever uses them."""

    def __init__(self, queue: bytes, factory: Factory) -> None:
        self.id = queue
        self._factory = factory

    def producer(self) -> QueueProducer:
        """Return a producer for this queue."""
        return self._factory.make_producer(self.id)

    def consumer(self) -> QueueConsumer:
        """Return a consumer of this queue: it begins to receive at once."""
        return self._factory.make_consumer(self.id)

    def __repr__(self) -> str:
        return f"<Queue {self.id!r}>"
