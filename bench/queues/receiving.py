"""Receives and acks a backlog: through a service, one message at a time as kafka-mq-go does, and with a share group.

Each side counts messages a second, from the end of its warm-up to the broker's answer to the last ack. It fails if a
message comes twice.
"""

import time
from collections.abc import Iterable

from confluent_kafka import Consumer, Message, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from bench.measuring.apart import Line
from bench.queues.place import PATIENCE_SECONDS, QUEUE, WARM_SHARE, Learnt, Place, checked
from thresher.queue.wire.marker import Marker, MarkerType, MessageId, encode


class Clock:
    """The rate of a side: from the end of its warm-up to `rate`."""

    def __init__(self, messages: int) -> None:
        self._messages, self._warm = messages, int(WARM_SHARE * messages)
        self._began = 0.0
        self._ids: list[int] = []

    def tick(self, message_id: tuple[int, int]) -> bool:
        """Count a received message, and return whether there are more."""
        # As a number: the garbage collector would scan a hundred thousand pairs again and again.
        self._ids.append(message_id[0] << 48 | message_id[1])
        if len(self._ids) == self._warm:
            self._began = time.perf_counter()
        return len(self._ids) < self._messages

    def rate(self) -> float:
        """Return messages a second. Called when the last ack is answered."""
        took = time.perf_counter() - self._began
        assert len(set(self._ids)) == self._messages, f"{len(self._ids) - len(set(self._ids))} messages came twice"
        return (self._messages - self._warm) / took


def through_service(place: Place, messages: int, line: Line) -> None:
    """Call `receive` and `ack` for each message, then `flush`."""
    line.send("ready")
    line.recv()
    clock = Clock(messages)
    with place.service() as service, service.queue(QUEUE).consumer() as consumer:
        more = True
        while more:
            message = consumer.receive(PATIENCE_SECONDS)
            assert message is not None, "no message came"
            more = clock.tick(message.id)
            message.ack()
        assert consumer.flush(PATIENCE_SECONDS), "acks were not answered for"
        rate = clock.rate()
    line.send(rate)


def one_by_one(place: Place, learnt: Learnt, messages: int, line: Line) -> None:
    """For each message: poll it, send its Start and wait, commit its offset and wait, send its End."""
    consumer = Consumer({**learnt.consumer, "group.id": f"plain-{place.name}", "auto.offset.reset": "earliest"})
    consumer.subscribe([place.name])
    # It waits for each record, so a linger time would only slow it down.
    producer = Producer({**learnt.producer, "partitioner": "murmur2_random", "linger.ms": 0})
    markers = place.config().marker_topic
    line.send("ready")
    line.recv()
    clock = Clock(messages)
    more = True
    while more:
        message = checked(consumer.poll(PATIENCE_SECONDS))
        if message.key() != QUEUE:
            continue
        message_id = id_of(message)
        send(producer, markers, start_of(message))
        consumer.commit(message=message, asynchronous=False)
        more = clock.tick(message_id)
        # It does not wait for the answer, like the queue's own acks.
        producer.produce(markers, encode(Marker(type=MarkerType.END, message_id=message_id)), QUEUE)
        producer.poll(0)
    producer.flush(PATIENCE_SECONDS)
    rate = clock.rate()
    consumer.close()
    line.send(rate)


def by_share_group(place: Place, messages: int, line: Line) -> None:
    """Acknowledge each message; the client sends the acknowledgements with its next poll."""
    group = f"share-{place.name}"
    begin_at_first(place.bootstrap, group)
    consumer = ShareConsumer(
        {"bootstrap.servers": place.bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe([place.name])
    line.send("ready")
    line.recv()
    clock = Clock(messages)
    more = True
    while more:
        polled: Iterable[Message] = consumer.poll(1.0)
        for each in polled:
            message = checked(each)
            more = clock.tick(id_of(message))
            consumer.acknowledge(message)
    for error in consumer.commit_sync(PATIENCE_SECONDS).values():
        if error is not None:
            raise error
    rate = clock.rate()
    consumer.close()
    line.send(rate)


def begin_at_first(bootstrap: str, group: str) -> None:
    """Make a share group begin at the first record: by default it begins after the last."""
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    # Without this reference, the client would be garbage-collected before its answers come.
    client = AdminClient({"bootstrap.servers": bootstrap})
    for answer in client.incremental_alter_configs([resource]).values():
        answer.result()


def id_of(message: Message) -> MessageId:
    return MessageId(message.partition() or 0, message.offset() or 0)


def start_of(message: Message) -> Marker:
    """Return a Start with the same fields as a service's."""
    return Marker(
        type=MarkerType.START,
        message_id=id_of(message),
        redeliver_after_ms=60_000,
        key=QUEUE,
        value=bytes_of(message),
        origin_id=id_of(message),
        enqueued_at_ms=message.timestamp()[1],
    )


def bytes_of(message: Message) -> bytes:
    value = message.value()
    return value if isinstance(value, bytes) else b""


def send(producer: Producer, topic: str, marker: Marker) -> None:
    """Send a marker, and wait for the broker's answer."""
    failed: list[str] = []
    producer.produce(
        topic, encode(marker), QUEUE, on_delivery=lambda error, _: failed.append(error.str()) if error else None
    )
    left = producer.flush(PATIENCE_SECONDS)
    assert not left, "a marker was not answered for"
    assert not failed, f"a marker was not sent: {failed[0]}"
