"""The measurements: a tracker and a plain loop over the same markers, rebuild, redelivery, and take-over."""

import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from bench.trackers.place import PAYLOAD_BYTES, QUEUE, UP_SECONDS, MarkerPlace, TrackerProgram, start_of

# Rates count from the first share of the markers to the second.
WARM_SHARE, LAST_SHARE = 0.1, 0.9
REDELIVER_MS = 1_000


def rate_of(seen: Any, first: int, count: int) -> float:
    """Return markers a second, between 10 % and 90 % of `count` markers after the first `first` ones."""
    began: tuple[float, int] | None = None
    last: tuple[float, int] | None = None
    while last is None or last[1] < first + LAST_SHARE * count:
        found = seen()
        now = time.monotonic()
        if began is None and found >= first + WARM_SHARE * count:
            began = (now, found)
        if last is None or found > last[1]:
            last = (now, found)
        time.sleep(0.05)
    if began is None or last[1] <= began[1]:
        raise TimeoutError("too few markers for a rate")
    return (last[1] - began[1]) / (last[0] - began[0])


def tracked(place: MarkerPlace, held: int, messages: int, *, memory_mb: int = 2_048) -> tuple[float, dict[str, Any]]:
    """Let a tracker read markers as they are written; return their rate, and its status page at the end.

    `held` messages are in progress before. The writer is another process, and faster than the tracker.
    """
    place.start(held)
    with TrackerProgram(place.config, election="none", memory_mb=memory_mb) as tracker:
        tracker.until(lambda: tracker.is_tracking and tracker.markers() >= held)
        with _writing(place, held, messages):
            rate = rate_of(tracker.markers, held, 2 * messages)
        tracker.until(lambda: tracker.markers() >= held + 2 * messages)
        # Its figures come with the next heartbeats.
        time.sleep(2.5)
        return rate, tracker.status()


@contextmanager
def _writing(place: MarkerPlace, first: int, messages: int) -> Iterator[None]:
    """Start and end this many messages, in another process, while the context lasts."""
    writer = multiprocessing.get_context("spawn").Process(target=_write, args=(place, first, messages))
    writer.start()
    try:
        yield
        writer.join(UP_SECONDS)
    finally:
        writer.kill()


def _write(place: MarkerPlace, first: int, messages: int) -> None:
    place.pass_through(messages, first=first)


def bare(place: MarkerPlace, messages: int) -> float:
    """Return markers a second of a loop that only reads them, as they are written."""
    consumer = Consumer(
        {
            **place.config.clients,
            "group.id": "bare",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(place.config.marker_topic, 0, 0)])
    count = 2 * messages
    read, began = 0, (0.0, 0)
    try:
        with _writing(place, 0, messages):
            while read < LAST_SHARE * count:
                read += len(consumer.consume(2_000, 0.1))
                if not began[1] and read >= WARM_SHARE * count:
                    began = (time.monotonic(), read)
            return (read - began[1]) / (time.monotonic() - began[0])
    finally:
        consumer.close()


def rebuild_seconds(place: MarkerPlace, *, memory_mb: int) -> float:
    """Return the time of a tracker from its take-over until it decides."""
    with TrackerProgram(place.config, election="none", memory_mb=memory_mb) as tracker:
        tracker.until(lambda: "is running" in tracker.said())
        began = time.monotonic()
        tracker.until(lambda: tracker.is_tracking)
        return time.monotonic() - began


def redelivery_ms(place: MarkerPlace, messages: int, per_second: float) -> tuple[float, float]:
    """Return p50 and p99 of the time from a message's deadline until it is in the message topic."""
    deadlines: dict[int, int] = {}
    arrived: dict[int, float] = {}
    over = threading.Event()

    def read() -> None:
        config = {**place.config.clients, "group.id": "watch", "isolation.level": "read_committed"}
        consumer = Consumer({**config, "fetch.wait.max.ms": 10, "enable.auto.commit": False})
        consumer.assign([TopicPartition(place.config.message_topic, 0, 0)])
        while not over.is_set():
            for message in consumer.consume(100, 0.01):
                if message.error() is None:
                    arrived[int((message.value() or b"0").split()[0])] = time.time() * 1000
        consumer.close()

    def noted(_: Any, message: Message) -> None:
        deadlines[int((message.key() or b"").rpartition(b"-")[2])] = message.timestamp()[1] + REDELIVER_MS

    reader = threading.Thread(target=read, daemon=True)
    with TrackerProgram(place.config, election="none") as tracker:
        tracker.until(lambda: tracker.is_tracking)
        reader.start()
        producer = Producer({**place.config.clients, "linger.ms": 0})
        for number in range(messages):
            payload = str(number).encode().ljust(PAYLOAD_BYTES, b" ")
            key = QUEUE + b"-%d" % number
            producer.produce(
                place.config.marker_topic, start_of(number, REDELIVER_MS, payload), key, 0, on_delivery=noted
            )
            producer.poll(1 / per_second)
        producer.flush(30)
        tracker.until(lambda: len(arrived) >= messages)
        over.set()
        reader.join(10)
    late = sorted(arrived[number] - deadline for number, deadline in deadlines.items())
    return statistics.median(late), late[int(len(late) * 0.99)]


def take_over_seconds(place: MarkerPlace) -> float:
    """Return the time from a kill -9 of the leader until its standby tracks, with no message in progress."""
    with TrackerProgram(place.config) as one, TrackerProgram(place.config) as other:
        one.until(lambda: one.is_tracking or other.is_tracking)
        leader, standby = (one, other) if one.is_tracking else (other, one)
        standby.until(lambda: "Spark is ready" in standby.said())
        time.sleep(2.0)
        leader.process.kill()
        began = time.monotonic()
        standby.until(lambda: standby.is_tracking)
        return time.monotonic() - began
