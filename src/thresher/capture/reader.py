"""Reads the partitions of several topics with one consumer that joins no group and commits no offsets.

1. A partition is read `read_committed` from the assigned offset, in the order of its offsets.
2. A part is complete: it has every committed record from `Part.start` up to `Part.end`. The next part begins there.
   Gaps in offsets (control records, aborted transactions, compaction) are inside parts.
3. Added partitions are reported by `partitions`, and read once they are assigned.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from thresher.capture.positions import Part
from thresher.capture.problem import topic_changed
from thresher.capture.record import CapturedRecord, Place
from thresher.core.secrets import revealed_properties
from thresher.kafka.assigned_reader import problem_of
from thresher.kafka.fetch_sizes import bounded_fetches
from thresher.kafka.partition_ends import OpenTransactions
from thresher.kafka.partition_watch import PartitionWatch, PositionLost, WatchTimings
from thresher.kafka.problem import broker_problem
from thresher.kafka.record_headers import headers_of
from thresher.kafka.unreadable_batch import unreadable_from

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
_events = logging.getLogger(__name__)
# How often a batch that cannot be decompressed is reported.
_UNREADABLE_SECONDS = 60.0
# Defaults that a configuration may override. A long idle fetch delays the end-of-partition event; a long back-off
# delays reading after the broker's restart.
_DEFAULTS: dict[str, Any] = {
    "fetch.wait.max.ms": 100,
    "reconnect.backoff.max.ms": 1_000,
    "log_level": 2,
    # Read ahead no more than a few batches, to bound memory.
    "queued.min.messages": 50_000,
}


class TopicsReader:
    """Reads the partitions that it is assigned. A context manager, for one thread."""

    def __init__(
        self, topics: Iterable[str], config: Mapping[str, Any], *, timings: WatchTimings | None = None
    ) -> None:
        self._timings = timings or WatchTimings()
        errors: list[KafkaError] = []
        asking: dict[str, Any] = {"log_level": 2, **config, "error_cb": errors.append}
        client = AdminClient(revealed_properties(asking), logger=_logger)
        self._watches = {topic: PartitionWatch(topic, client, timings=self._timings, errors=errors) for topic in topics}
        # The next offset to read.
        self._positions: dict[Place, int] = {}
        # The first offset of the unreadable batch before which a partition stands still.
        self.unreadable: dict[Place, int] = {}
        # When such a batch was last reported.
        self._told_at: dict[Place, float] = {}
        self._consumer = Consumer(
            revealed_properties(
                OpenTransactions("the capture").watching(
                    {
                        **_DEFAULTS,
                        # An added partition is read only once the client's own metadata has it.
                        "topic.metadata.refresh.interval.ms": max(100, int(self._timings.every_seconds * 1000)),
                        **bounded_fetches(config),
                        # The client requires a group id; the group is never joined.
                        "group.id": "thresher-capture",
                        "enable.auto.commit": False,
                        "enable.auto.offset.store": False,
                        "enable.partition.eof": True,
                        "isolation.level": "read_committed",
                        "auto.offset.reset": "error",
                        "allow.auto.create.topics": False,
                        # The client repairs connection errors itself; the watches report refusals.
                        "error_cb": lambda _: None,
                    }
                )
            ),
            logger=_logger,
        )

    def __enter__(self) -> "TopicsReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    @property
    def positions(self) -> Mapping[Place, int]:
        """The next offset to read in each partition."""
        return self._positions

    def assign(self, place: Place, offset: int) -> None:
        """Read a partition from this offset on. Records that were prefetched for it are discarded."""
        topic, partition = place
        if place in self._positions:
            self._consumer.incremental_unassign([TopicPartition(topic, partition)])
        self._consumer.incremental_assign([TopicPartition(topic, partition, offset)])
        self._positions[place] = offset
        self.unreadable.pop(place, None)

    def leave(self, place: Place) -> None:
        """Read a partition no more until it is assigned again. Records that were prefetched for it are discarded."""
        if self._positions.pop(place, None) is not None:
            self._consumer.incremental_unassign([TopicPartition(*place)])
            self.unreadable.pop(place, None)

    def partitions(self) -> dict[str, int]:
        """Return the number of partitions of the topics that were checked since the last call. Never blocks.

        Raises `PositionLost` for a topic that was created again, and `BrokerRefused`.
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
        """Return the next parts, at once if there are any; an empty list after the time-out.

        Raises `PositionLost`, `BrokerRefused`, or `BrokerLost` after a fatal error of the client.
        """
        try:
            # `consume` would wait until it has that many records; `poll` returns with the first.
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
        """Return the lag of each topic behind the stored offsets, by the client's cached high watermarks."""
        found = dict.fromkeys(self._watches, 0)
        for (topic, partition), position in stored.items():
            _, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
            found[topic] += max(0, high - position)
        return found

    def _part(self, place: Place, records: Iterable[CapturedRecord], end: int) -> Part:
        start = self._positions[place]
        self.unreadable.pop(place, None)
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
        if (first := unreadable_from(message)) is not None and topic is not None and partition is not None:
            # It may hold records, so the partition waits. The other partitions go on.
            self._note_unreadable((topic, partition), first)
            return
        what = "the captured topics" if topic is None else f"{topic}/{partition}"
        if (problem := problem_of(error, what)) is not None:
            if isinstance(problem, PositionLost):
                raise PositionLost(f"{problem}: run 'thresher capture adopt' to go on without the removed records")
            raise problem

    def _note_unreadable(self, place: Place, first: int) -> None:
        """Keep where a batch is that the client cannot decompress, and report it once a minute."""
        if place not in self._positions:
            return
        self.unreadable[place] = first
        now = time.monotonic()
        if now - self._told_at.get(place, float("-inf")) > _UNREADABLE_SECONDS:
            self._told_at[place] = now
            _events.error("%s/%d waits: %s", *place, why_waits(first))


def why_waits(first: int) -> str:
    """Return why a partition stands still before an unreadable batch, and what a person can do."""
    return (
        f"the batch at offset {first} cannot be decompressed; raise receive.message.max.bytes of 'consumer', "
        "or step over it with 'thresher capture step-over -c FILE'"
    )


def _record(message: Message) -> CapturedRecord:
    # The client's annotations are Optional, since a message may be an error. This one is not.
    return CapturedRecord(
        message.topic(),  # type: ignore[arg-type]
        message.partition(),  # type: ignore[arg-type]
        message.offset(),  # type: ignore[arg-type]
        message.timestamp()[1],
        message.key(),
        message.value(),
        headers_of(message),
    )
