"""The two steps of a tracker's pipeline, `read` and `track`, which the engine runs in a Python worker of a Spark task.

`track` takes its partitions over before it pulls from `read`, so nothing is read before each partition is fenced. A
partition that is added to the marker topic is taken over when the reader reports it, then read from its offset.
"""

import contextlib
import gc
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException

from thresher.delivery.crash_points import CrashPoints
from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import (
    AssignedReader,
    ConsumerRecord,
    EndOfPartition,
    PartitionAdded,
    ReadEvent,
    UnreadableBatch,
)
from thresher.kafka.end_watch import EndWatch, EndWatcher
from thresher.kafka.partition_ends import PartitionEnds, partition_ends
from thresher.kafka.partition_watch import PositionLost
from thresher.kafka.problem import BrokerLost
from thresher.spark.worker.shard import Shard
from thresher.tracker.meter import Meter
from thresher.tracker.partition_writer import Committed, PartitionWriter, Refused
from thresher.tracker.protocol.clock import MarkerClock
from thresher.tracker.protocol.tracking import Rules, Tracking
from thresher.tracker.room import Room, local_directory
from thresher.tracker.settings import TrackerSettings, owned

_POLL_SECONDS, _RECORDS = 0.05, 2_000
_RETENTION_SECONDS = 30.0
# How long to wait, and how often to ask again, if a partition ends before its committed offset.
_OLD_ENDS_SECONDS, _ASK_AGAIN_SECONDS = 10.0, 0.5
# Prefetched records take memory away from messages in progress.
_READER = {"queued.min.messages": 10_000}


class Source:
    """The reader of an attempt: opened by `track`, used by `read`."""

    reader: AssignedReader | None = None


@dataclass(slots=True)
class _Partition:
    tracking: Tracking
    writer: PartitionWriter


def read(shard: Shard, config: Mapping[str, Any]) -> Iterator[list[ReadEvent]]:  # noqa: ARG001 - a step's signature
    """Yield the events of the shard's partitions. `track` has opened the reader before it pulls."""
    source = shard.share(Source)
    while not shard.stopping:
        yield [] if source.reader is None else source.reader.poll(_POLL_SECONDS, at_most=_RECORDS)


def track(shard: Shard, config: Mapping[str, Any], batches: Iterator[list[ReadEvent]]) -> None:
    """Track the shard's partitions until the batches end or an error occurs."""
    settings: TrackerSettings = config["settings"]
    # Messages in progress are many, long-lived and free of cycles: garbage collection over them finds nothing.
    gc.freeze()
    gc.set_threshold(200_000, 50, 1_000)
    crash = CrashPoints(config.get("hook"), shard.index)
    rules = settings.rules(config["retention_ms"])
    with closing(Attempt(shard, settings, rules, term=config["term"], crash=crash)) as attempt:
        with shard.step("take over"):
            attempt.open()
        for events in batches:
            attempt.take(events)
            # The events' memory must not be counted as that of messages in progress.
            events.clear()
            attempt.go_on()


class Attempt:
    """One attempt at one shard: its reader, and for each partition its tracking and its writer."""

    def __init__(self, shard: Shard, settings: TrackerSettings, rules: Rules, *, term: str, crash: CrashPoints) -> None:
        self._shard, self._settings, self._rules = shard, settings, rules
        self._term, self._crash = term, crash
        self._admin = Admin.of(settings.kafka)
        self._partitions: dict[int, _Partition] = {}
        self._ends = shard.enter(EndWatcher(EndWatch(settings.marker_topic, self._admin.client)))
        self._room = Room(shard, settings, directory=local_directory())
        self._meter = Meter(shard, shard.shards)
        self._writing = shard.step("write")
        self._retention_due = time.monotonic() + _RETENTION_SECONDS

    def open(self) -> None:
        """Take over the existing partitions, and start reading."""
        topic = self._settings.marker_topic
        facts = self._admin.topic(topic)
        if facts is None:
            raise BrokerLost(f"there is no topic {topic} any more")
        starts = self._take_over(partition for partition in range(facts.partitions) if self._owns(partition))
        reader = AssignedReader(
            topic,
            {**_READER, **self._settings.kafka, **self._settings.consumer},
            starts=starts,
            owns=self._owns,
        )
        self._shard.share(Source).reader = self._shard.enter(reader)
        # No event reports a partition that was added between the two steps above.
        self._add(partition for partition in reader.partitions if partition not in starts)

    def close(self) -> None:
        """Release the producers and the temporary file."""
        for each in self._partitions.values():
            each.writer.close()
        self._room.close()

    def take(self, events: list[ReadEvent]) -> None:
        """Process the events that were read."""
        at = time.monotonic()
        partitions = self._partitions
        for event in events:
            if type(event) is ConsumerRecord:
                tracking = partitions[event.partition].tracking
                tracking.take(event.offset, event.timestamp_ms, event.key or b"", event.value or b"", at)
            elif isinstance(event, EndOfPartition):
                partitions[event.partition].tracking.reach(event.offset)
            elif isinstance(event, PartitionAdded):
                self._add([event.partition])
            elif isinstance(event, UnreadableBatch):
                # No program of ours writes such a batch.
                tracking = partitions[event.partition].tracking
                tracking.figures.set_aside(event.first, f"offsets up to {event.after - 1} cannot be decompressed")
                tracking.reach(event.after)
        self._check_ends()

    def go_on(self) -> None:
        """Write the next transaction of each partition."""
        for each in self._partitions.values():
            transaction = each.tracking.next(time.monotonic())
            if transaction is None:
                continue
            with self._writing:
                outcome = each.writer.write(transaction, each.tracking.clock.broker_ms)
            if isinstance(outcome, Committed):
                each.tracking.committed(transaction, time.monotonic())
            elif isinstance(outcome, Refused):
                each.tracking.refused(transaction, outcome.why, outcome.kind)
            else:
                each.tracking.undone(transaction)
                self._shard.count("undone")
                self._shard.event("undone", partition=each.tracking.partition, why=outcome.why)
        self._check_retention()
        self._meter.report({number: each.tracking for number, each in self._partitions.items()})
        self._room.look(lambda: sum(len(each.tracking.messages) for each in self._partitions.values()))

    def _check_ends(self) -> None:
        for end in self._ends.answers(self._partitions):
            self._partitions[end.partition].tracking.answered(end.asked_at, end.offset)

    def _check_retention(self) -> None:
        """Apply the marker topic's current retention: a Start must be rewritten before retention removes it."""
        now = time.monotonic()
        if now < self._retention_due:
            return
        self._retention_due = now + _RETENTION_SECONDS
        with contextlib.suppress(KafkaException):
            found = self._admin.topic_config(self._settings.marker_topic)
            rules = self._settings.rules(int(found["retention.ms"]))
            for each in self._partitions.values():
                each.tracking.rules = rules
            self._rules = rules

    def _add(self, partitions: Iterable[int]) -> None:
        """Take over partitions that the reader has added, and seek to their offsets."""
        reader = self._shard.share(Source).reader
        for partition, start in self._take_over(partitions).items():
            if reader is not None:
                reader.seek(partition, start)

    def _take_over(self, partitions: Iterable[int]) -> dict[int, int]:
        """Take partitions over, and return the offset from which to read each."""
        writers = {
            partition: PartitionWriter(self._settings, partition, self._term, self._crash) for partition in partitions
        }
        committed = {partition: writer.open() for partition, writer in writers.items()}
        ends = self._current_ends(committed) if writers else {}
        starts = {partition: self._start(partition, committed[partition], ends[partition]) for partition in ends}
        for partition, start in starts.items():
            clock = MarkerClock(use_now_after_seconds=self._settings.use_now_after_seconds)
            tracking = Tracking(
                partition,
                start,
                self._rules,
                committed=committed[partition] == start,
                clock=clock,
                contents=self._room.contents,
            )
            self._partitions[partition] = _Partition(tracking, writers[partition])
        return starts

    def _current_ends(self, committed: Mapping[int, int | None]) -> dict[int, PartitionEnds]:
        """Return the first and last offsets of partitions.

        This waits, because an isolated broker may return old ones.
        """
        deadline = time.monotonic() + _OLD_ENDS_SECONDS
        while True:
            ends = partition_ends(self._admin.client, self._settings.marker_topic, committed)
            behind = any((committed[partition] or 0) > each.high for partition, each in ends.items())
            if not behind or time.monotonic() > deadline:
                return ends
            time.sleep(_ASK_AGAIN_SECONDS)

    def _start(self, partition: int, committed: int | None, ends: PartitionEnds) -> int:
        """Return where to begin to read: at the committed offset, or at the first record if there is none."""
        if committed is None or ends.first <= committed <= ends.high:
            return ends.first if committed is None else committed
        lost = ends.first - committed
        if self._settings.accept_lost_markers:
            self._shard.event("lost markers", partition=partition, markers=max(0, lost))
            return ends.first
        what = (
            f"has lost {lost} markers that the tracker still needed: retention or an operator has removed them"
            if lost > 0
            else f"ends at {ends.high}, before the tracker's committed offset {committed}: the topic was recreated"
        )
        raise PositionLost(
            f"partition {partition} of {self._settings.marker_topic} {what}. Messages whose Starts are lost "
            "are not redelivered; to continue without them, set redelivery-tracker.accept-lost-markers"
        )

    def _owns(self, partition: int) -> bool:
        return owned(partition, self._shard.index, self._shard.shards)
