"""A tracker in this process, on the Spark of the tests, and markers that the test itself writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from confluent_kafka import Producer

from tests.committed_records import committed_records
from tests.processes import eventually
from tests.queue.topics import QueueTopics
from thresher.core.errors import ThresherError
from thresher.kafka.assigned_reader import ConsumerRecord
from thresher.kafka.partitioners import murmur2_partition
from thresher.queue.configuration import QueueConfig
from thresher.queue.wire.dead_letter import DeadLetter
from thresher.queue.wire.marker import SYNTHETIC, Marker, MarkerType, MessageId, encode
from thresher.queue.wire.record import Record, record_of
from thresher.tracker.dead import contents
from thresher.tracker.dead import dead_letters as dead_heads
from thresher.tracker.tracker import Tracker

# Five times the longest time seen on a busy machine, plus 5 s.
PATIENCE_SECONDS = 90.0
ALONE = {"election": "none", "status": "off"}


def tracker_of(topics: QueueTopics, *, hook: str | None = None, **section: Any) -> Tracker:
    """Return a tracker for these topics, not started."""
    given = topics.config.model_dump(by_alias=True, exclude_unset=True)
    own = {**given.get("redelivery-tracker", {}), **ALONE, **section}
    return Tracker({**given, "redelivery-tracker": own}, hook=hook)


@contextmanager
def tracked(topics: QueueTopics, *, hook: str | None = None, **section: Any) -> Iterator[Tracker]:
    """Track these topics while the context lasts. An error that ends the tracker is raised at its end."""
    with tracker_of(topics, hook=hook, **section) as tracker:
        eventually(
            lambda: (
                (found := tracker.snapshot()) is not None
                and all(shard.gauges.get("tracking") for shard in found.shards)
            ),
            PATIENCE_SECONDS,
            lambda: f"{tracker.state}, {tracker.waiting_for}, {tracker.snapshot()}",
        )
        yield tracker


def ended_by(topics: QueueTopics, **section: Any) -> ThresherError:
    """Run a tracker of these topics until it fails, and return its error."""
    tracker = tracker_of(topics, **section)
    tracker.start()
    try:
        tracker.wait(PATIENCE_SECONDS)
    except ThresherError as error:
        return error
    finally:
        tracker.stop()
    raise AssertionError("the tracker goes on")


def figure(tracker: Tracker, name: str) -> float:
    """Return the sum of a figure over all shards, from counters or gauges."""
    found = tracker.snapshot()
    gauged = sum(shard.gauges.get(name, 0) for shard in (found.shards if found else ()))
    return tracker.process_counts.total(name) or gauged


def start(number: int, after_ms: int, *, queue: bytes = b"orders", **fields: Any) -> Marker:
    """Return the Start of a message, as a consumer writes it."""
    return Marker(
        type=MarkerType.START,
        message_id=MessageId(0, number),
        redeliver_after_ms=after_ms,
        key=queue,
        value=fields.pop("value", b"%d" % number),
        **fields,
    )


def delayed(number: int, after_ms: int, **fields: Any) -> Marker:
    """Return the Start of a message that was sent with a delay, as its producer writes it."""
    id_ = MessageId(SYNTHETIC, number)
    return replace(start(number, after_ms, undelivered=True, **fields), message_id=id_)


def end(number: int) -> Marker:
    """Return the End of such a message."""
    return Marker(type=MarkerType.END, message_id=MessageId(0, number))


def keep_alive(number: int, after_ms: int, **fields: Any) -> Marker:
    """Return a KeepAlive of such a message."""
    return Marker(
        type=MarkerType.KEEPALIVE, message_id=MessageId(0, number), redeliver_after_ms=after_ms, **fields
    )  # fmt: skip


def write(topics: QueueTopics, *markers: Marker | bytes, queue: bytes = b"orders", compression: str = "none") -> None:
    """Write markers of a queue, as its consumer would, and wait until the broker has them."""
    facts = topics.admin.topic(topics.config.marker_topic)
    assert facts is not None
    partition = murmur2_partition(queue, facts.partitions)
    producer = Producer(
        {
            **topics.eyes,
            "acks": "all",
            "linger.ms": 0,
            "message.max.bytes": 1_000_000_000,
            "compression.type": compression,
        }
    )
    refused: list[Any] = []
    for marker in markers:
        content = marker if isinstance(marker, bytes) else encode(marker)
        producer.produce(
            topics.config.marker_topic,
            content,
            queue,
            partition,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert refused == []


def redelivered(topics: QueueTopics) -> list[Record]:
    """Return the messages of the message topic, with the fields from their headers."""
    return [
        record_of(MessageId(each.partition, each.offset), each.value, each.headers, each.timestamp_ms)
        for each in committed(topics, topics.config.message_topic)
    ]


def committed(topics: QueueTopics, topic: str) -> list[ConsumerRecord]:
    """Return the committed records of a topic, with their keys and headers."""
    return committed_records(topic, topics.eyes)


def dead_letters(config: QueueConfig) -> list[DeadLetter]:
    """Return the dead letters with their contents, earliest first."""
    return list(contents(config, dead_heads(config)))
