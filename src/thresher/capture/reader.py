"""Reads the partitions of several topics by one consumer that joins no group and commits nothing.

1. A partition is read from where it is told, `read_committed`, in the order of its offsets.
2. What is returned is complete: `Part.start` is where reading went on, and every committed record up to `Part.end` is
   there. Gaps, which control records, aborted transactions and compaction leave, are part of it.
3. Partitions that a topic has more than before are told of, and read once they are assigned.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from thresher.capture.positions import Part
from thresher.capture.problem import topic_changed
from thresher.capture.record import CapturedRecord, Place
from thresher.kafka.assigned_reader import problem_of
from thresher.kafka.partition_watch import PartitionWatch, PositionLost, WatchTimings
from thresher.kafka.problem import broker_problem
from thresher.kafka.record_headers import headers_of

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
# A configuration may change these. An idle fetch delays the end event, and a long back-off the return after a restart.
_DEFAULTS: dict[str, Any] = {
    "fetch.wait.max.ms": 100,
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 2,
    # Read ahead no more than a few batches: it is memory.
    "queued.max.messages.kbytes": 32_768,
    "queued.min.messages": 50_000,
}


class TopicsReader:
    """Reads what it is assigned. A context manager, for one thread."""

    def __init__(
        self, topics: Iterable[str], config: Mapping[str, Any], *, timings: WatchTimings | None = None
    ) -> None:
        self._timings = timings or WatchTimings()
        errors: list[KafkaError] = []
        asking: dict[str, Any] = {"log_level": 2, **config, "error_cb": errors.append}
        client = AdminClient(asking, logger=_logger)
        self._watches = {topic: PartitionWatch(topic, client, timings=self._timings, errors=errors) for topic in topics}
        # Where reading goes on.
        self._positions: dict[Place, int] = {}
        self._consumer = Consumer(
            {
                **_DEFAULTS,
                # A partition that was added is read once the client's own metadata has it too.
                "topic.metadata.refresh.interval.ms": max(100, int(self._timings.every_seconds * 1000)),
                **config,
                # Never joined: the client wants a name.
                "group.id": "thresher-capture",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                # Errors of connections, which the client mends; the watches tell a refusal.
                "error_cb": lambda _: None,
            },
            logger=_logger,
        )

    def __enter__(self) -> "TopicsReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def positions(self) -> Mapping[Place, int]:
        """Where reading goes on in each partition."""
        return self._positions

    def assign(self, place: Place, offset: int) -> None:
        """Read a partition from this offset on. What was read ahead of it is thrown away."""
        topic, partition = place
        if place in self._positions:
            self._consumer.incremental_unassign([TopicPartition(topic, partition)])
        self._consumer.incremental_assign([TopicPartition(topic, partition, offset)])
        self._positions[place] = offset

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of topics that have told theirs since the last call. Never blocks.

        Raises `PositionLost` for a topic that was made anew, and `BrokerRefused`.
        """
        found: dict[str, int] = {}
        for topic, watch in self._watches.items():
            try:
                count = watch.look()
            except PositionLost as error:
                raise PositionLost(topic_changed(topic)) from error
            if count is not None:
                found[topic] = count
        return found

    def poll(self, timeout_seconds: float, at_most: int) -> list[Part]:
        """Return what comes next: at once if there is anything, else nothing after the time-out.

        Raises `PositionLost`, `BrokerRefused`, or `BrokerLost` after a fatal error of the client.
        """
        try:
            # `consume` would wait for as many as it is told; `poll` returns with the first.
            first = self._consumer.poll(timeout_seconds)
            if first is None:
                return []
            messages = [first, *self._consumer.consume(at_most - 1, 0)] if at_most > 1 else [first]
        except KafkaException as caught:
            raise broker_problem("the captured topics cannot be read", caught.args[0]) from caught
        records: dict[Place, list[CapturedRecord]] = {}
        ends: dict[Place, int] = {}
        for message in messages:
            if message.error() is None:
                record = _record(message)
                place = (record.topic, record.partition)
                records.setdefault(place, []).append(record)
                ends[place] = record.offset + 1
            else:
                self._take_event(message, ends)
        return [
            self._part(place, records.get(place, ()), end) for place, end in ends.items() if place in self._positions
        ]

    def lag(self, stored: Mapping[Place, int]) -> dict[str, int]:
        """Return how many offsets each topic has behind what is stored, as far as the client knows."""
        found = dict.fromkeys(self._watches, 0)
        for (topic, partition), position in stored.items():
            _, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
            found[topic] += max(0, high - position)
        return found

    def _part(self, place: Place, records: Iterable[CapturedRecord], end: int) -> Part:
        start = self._positions[place]
        self._positions[place] = max(start, end)
        return Part(*place, start, max(start, end), tuple(records))

    def _take_event(self, message: Message, ends: dict[Place, int]) -> None:
        error, topic, partition, offset = message.error(), message.topic(), message.partition(), message.offset()
        if error is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            if topic is not None and partition is not None and offset is not None and offset >= 0:
                ends[topic, partition] = max(offset, ends.get((topic, partition), 0))
            return
        what = "the captured topics" if topic is None else f"{topic}/{partition}"
        if (problem := problem_of(error, what)) is not None:
            if isinstance(problem, PositionLost):
                raise PositionLost(f"{problem}; 'thresher capture adopt' goes on without what is gone")
            raise problem


def _record(message: Message) -> CapturedRecord:
    # The client's annotations allow for messages that are errors.
    return CapturedRecord(
        message.topic(),  # type: ignore[arg-type]
        message.partition(),  # type: ignore[arg-type]
        message.offset(),  # type: ignore[arg-type]
        message.timestamp()[1],
        message.key(),
        message.value(),
        headers_of(message),
    )
