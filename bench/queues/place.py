"""The place of a queue bench: new topics for each measurement, and a backlog of messages in them.

Plain programs use the same properties as the service's clients: `learn` takes them from a running service.
"""

import random
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from bench.measuring.apart import running
from thresher.kafka.transaction.timeouts import TransactionTimeouts
from thresher.kafka.transactional import TransactionalProducer, properties
from thresher.queue import QueueConfig, QueueService
from thresher.queue.clients import Clients, KafkaClients
from thresher.queue.configuration import configured
from thresher.queue.topics import init_topics

QUEUE = b"bench"
PARTITIONS, PAYLOAD_BYTES = 4, 256
# The share of each side's messages that are received, or sent, before the clock starts.
WARM_SHARE = 0.2
PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A broker and the topics of one measurement. Processes pass it to each other."""

    bootstrap: str
    name: str

    @staticmethod
    def new(bootstrap: str) -> "Place":
        """Create empty topics."""
        place = Place(bootstrap=bootstrap, name=f"bench-{secrets.token_hex(4)}")
        init_topics(place.config(), partitions=PARTITIONS, marker_partitions=PARTITIONS)
        return place

    def config(self, **more: Any) -> QueueConfig:
        """Return the default configuration for these topics."""
        topics = {"message_topic": self.name, "marker_topic": f"{self.name}.markers"}
        return configured({"bootstrap_servers": self.bootstrap, **topics, **more})

    def service(self, clients: Clients | None = None, **more: Any) -> QueueService:
        """Return a service of these topics."""
        return QueueService(self.config(**more), clients=clients)

    def fill(self, properties: Mapping[str, Any], messages: int, queues: Sequence[bytes] = (QUEUE,)) -> None:
        """Send messages as a service's producer does, to each queue in turn, and wait for the broker."""
        failed: list[KafkaError] = []

        def heard(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({**properties, "queue.buffering.max.messages": 1_000_000})
        contents = payloads()
        for number in range(messages):
            queue = queues[number % len(queues)]
            producer.produce(self.name, contents[number % len(contents)], queue, on_delivery=heard)
            producer.poll(0)
        left = producer.flush(PATIENCE_SECONDS)
        assert not left, f"{left} messages of a backlog were not answered for"
        assert not failed, f"a message of a backlog was not sent: {failed[0].str()}"


def payloads(count: int = 1_000) -> list[bytes]:
    """Return payloads that cannot be compressed, the same at each call."""
    draw = random.Random(1)
    return [draw.randbytes(PAYLOAD_BYTES) for _ in range(count)]


def checked(message: Message | None) -> Message:
    """Return a message that a plain consumer has polled; raise if there is none, or an error."""
    if message is None:
        raise TimeoutError("no message came")
    if (error := message.error()) is not None:
        raise KafkaException(error)
    return message


def outcome(side: Callable[..., None], *arguments: Any) -> Any:
    """Run a side in its own process, and return its result."""
    with running(side, *arguments) as line:
        line.send("go")
        if not line.poll(PATIENCE_SECONDS):
            raise TimeoutError(f"{side.__name__} was not done in {PATIENCE_SECONDS:g} s")
        return line.recv()


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """The properties of a service's clients."""

    producer: Mapping[str, Any]
    consumer: Mapping[str, Any]
    transactional: Mapping[str, Any]

    def starting(self, transactional_id: str) -> dict[str, Any]:
        """Return the properties of a transactional producer with this id."""
        return {**self.transactional, "transactional.id": transactional_id}


@dataclass(slots=True)
class _Noting(KafkaClients):
    """Notes the properties of the clients that it makes."""

    noted: dict[str, dict[str, Any]] = field(default_factory=dict)
    complete: threading.Event = field(default_factory=threading.Event)

    def producer(self, properties: Mapping[str, Any]) -> Producer:
        # A service has two producers: the one for markers has another partitioner.
        if properties["partitioner"] == "random":
            self._note("producer", properties)
        return KafkaClients.producer(self, properties)

    def consumer(self, properties: Mapping[str, Any]) -> Consumer:
        self._note("consumer", properties)
        return KafkaClients.consumer(self, properties)

    def transactional(
        self, transactional_id: str, given: Mapping[str, Any], timeouts: TransactionTimeouts
    ) -> TransactionalProducer:
        self._note("transactional", properties(transactional_id, given, timeouts))
        return KafkaClients.transactional(self, transactional_id, given, timeouts)

    def _note(self, kind: str, found: Mapping[str, Any]) -> None:
        self.noted[kind] = dict(found)
        if len(self.noted) == 3:
            self.complete.set()


def learn(bootstrap: str) -> Learnt:
    """Let a service make its clients, and return their properties."""
    clients = _Noting()
    with Place.new(bootstrap).service(clients) as service, service.queue(QUEUE).consumer():
        service.queue(QUEUE).producer()
        if not clients.complete.wait(PATIENCE_SECONDS):
            raise TimeoutError("the service did not make its clients")
    return Learnt(**clients.noted)
