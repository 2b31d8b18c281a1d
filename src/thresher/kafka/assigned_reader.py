"""A long-running reader of a topic's partitions. It assigns them to itself and joins no consumer group.

1. Each partition is read from the offset given for it, or from its beginning.
2. Records of one partition come in the order of their offsets, each once. `read_committed` is the default: records of
   an aborted transaction never come, and an open transaction hides everything after its first record.
3. A partition that is added to the topic is announced by `PartitionAdded`, then read from its beginning.
4. A broker that restarts or does not answer ends nothing: `poll` returns no events until it is back. An error that a
   retry cannot mend is raised, and the reader is closed by its owner.

5. A batch that the client cannot decompress is stepped over, and announced by `UnreadableBatch`. A reader of a topic
   whose records must not be left out does not use this class.

It commits nothing: after a crash its owner starts again from the offsets that it has stored.
"""

import enum
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from thresher.core.errors import ThresherError
from thresher.core.secrets import revealed_properties
from thresher.kafka.fetch_sizes import bounded_fetches
from thresher.kafka.partition_ends import OpenTransactions
from thresher.kafka.partition_watch import PartitionWatch, PositionLost, WatchTimings
from thresher.kafka.problem import BrokerLost, broker_problem
from thresher.kafka.record_headers import headers_of
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.unreadable_batch import unreadable_at, unreadable_from

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
_LOOK_SECONDS = 0.02
# A configuration may change these. An idle fetch delays the end event, and a long back-off the return after a restart.
_DEFAULTS: dict[str, Any] = {"fetch.wait.max.ms": 100, "reconnect.backoff.max.ms": 1_000, "log_level": 2}
_OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE})

Isolation = Literal["read_committed", "read_uncommitted"]


class TimestampType(enum.IntEnum):
    """The clock that a record's timestamp comes from."""

    NONE = TIMESTAMP_NOT_AVAILABLE
    CREATE_TIME = TIMESTAMP_CREATE_TIME
    """The producer's."""

    LOG_APPEND_TIME = TIMESTAMP_LOG_APPEND_TIME
    """The broker's."""


# A tuple instead of a dataclass, because creating one takes a third of the time, and there is one per record.
class ConsumerRecord(NamedTuple):
    """One record, as the broker has it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfPartition:
    """The reader has reached the end: the high watermark, or for `read_committed` the last stable offset.

    It is returned again each time the reader reaches the end after further records.
    """

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAdded:
    """The topic has a new partition. Events of the partition follow this one."""

    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableBatch:
    """The reader steps over a batch that the client cannot decompress: the offsets from `first` to before `after`."""

    partition: int
    first: int
    after: int


ReadEvent = ConsumerRecord | EndOfPartition | PartitionAdded | UnreadableBatch


class AssignedReader:
    """Reads some partitions of one topic. A context manager, for one thread."""

    def __init__(
        self,
        topic: str,
        config: Mapping[str, Any],
        *,
        starts: Mapping[int, int] | None = None,
        owns: Callable[[int], bool] = lambda _: True,
        isolation: Isolation = "read_committed",
        timings: WatchTimings | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`starts` has the first offset to read of partitions; others are read from their beginning.

        `owns` decides which partitions are read.
        """
        self._topic, self._starts, self._owns = topic, dict(starts or {}), owns
        self._timings, self._monotonic = timings or WatchTimings(), monotonic
        self._count = 0
        # By partition: the end of the last unreadable batch.
        self._stepped: dict[int, int] = {}
        self._properties = {**config, "isolation.level": isolation}
        errors: list[KafkaError] = []
        asking: dict[str, Any] = {"log_level": 2, **config, "error_cb": errors.append}
        client = AdminClient(revealed_properties(asking), logger=_logger)
        self._watch = PartitionWatch(topic, client, timings=self._timings, errors=errors, monotonic=monotonic)
        self._consumer = Consumer(
            revealed_properties(
                OpenTransactions(f"the reader of {topic}").watching(
                    {
                        **_DEFAULTS,
                        # A partition that was added is read once the client's own metadata has it too.
                        "topic.metadata.refresh.interval.ms": max(100, int(self._timings.every_seconds * 1000)),
                        **bounded_fetches(config),
                        "group.id": f"{topic}.reader",
                        "enable.auto.commit": False,
                        "enable.auto.offset.store": False,
                        "enable.partition.eof": True,
                        "isolation.level": isolation,
                        "auto.offset.reset": "error",
                        "allow.auto.create.topics": False,
                        # Connection errors, from which the client recovers. The watch reports refusals.
                        "error_cb": _ignore,
                    }
                )
            ),
            logger=_logger,
        )

    def __enter__(self) -> "AssignedReader":
        """Assign the partitions. Raises `BrokerLost` if no broker answers, `BrokerRefused` or `PositionLost`."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the reader and its connections."""
        self._consumer.close()

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that are assigned now."""
        return tuple(partition for partition in range(self._count) if self._owns(partition))

    def poll(self, timeout_seconds: float, *, at_most: int = 500) -> list[ReadEvent]:
        """Return the next events as soon as there are some. Returns none after the time-out or a metadata look-up.

        Raises `PositionLost`, `BrokerRefused`, or `BrokerLost` after a fatal error of the client.
        """
        events: list[ReadEvent] = [PartitionAdded(partition=partition) for partition in self._assign_new()]
        try:
            # `consume` would wait for the requested number of records; `poll` returns with the first one.
            wait = 0.0 if events else min(timeout_seconds, self._timings.every_seconds)
            first = self._consumer.poll(wait)
            if first is None:
                return events
            messages = [first, *self._consumer.consume(at_most - 1, 0)] if at_most > 1 else [first]
        except KafkaException as caught:
            raise broker_problem(f"{self._topic} cannot be read", caught.args[0]) from caught
        for message in messages:
            error = message.error()
            if error is None:
                events.append(_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                events.append(EndOfPartition(partition=_number(message.partition()), offset=_number(message.offset())))
            elif (offset := unreadable_from(message)) is not None:
                events += self._step_over(_number(message.partition()), offset)
            elif (problem := problem_of(error, f"{self._topic}/{message.partition()}")) is not None:
                raise problem
        return events

    def seek(self, partition: int, offset: int) -> None:
        """Continue at another offset of a partition. No event from before the seek is returned; a pause ends."""
        self._consumer.incremental_unassign([TopicPartition(self._topic, partition)])
        self._consumer.incremental_assign([TopicPartition(self._topic, partition, offset)])

    def pause(self, partitions: Iterable[int]) -> None:
        """Return no records of these partitions until `resume`. The other partitions go on."""
        self._consumer.pause([TopicPartition(self._topic, partition) for partition in partitions])

    def resume(self, partitions: Iterable[int]) -> None:
        """Continue with partitions where they were paused."""
        self._consumer.resume([TopicPartition(self._topic, partition) for partition in partitions])

    def _step_over(self, partition: int, first: int) -> list[ReadEvent]:
        """Go on behind an unreadable batch; return no event if the batch was stepped over already."""
        if first < self._stepped.get(partition, 0):
            return []
        found = unreadable_at(self._topic, partition, first, self._properties)
        if found is None:
            return []
        self._stepped[partition] = found.after
        self.seek(partition, found.after)
        return [UnreadableBatch(partition=partition, first=first, after=found.after)]

    def _open(self) -> None:
        deadline = self._monotonic() + self._timings.answer_seconds + self._timings.missing_seconds
        self._assign_new()
        while not self._count:
            if self._monotonic() > deadline:
                raise BrokerLost(f"the partitions of {self._topic} are unknown: no broker answered in time")
            self._consumer.poll(_LOOK_SECONDS)
            self._assign_new()

    def _assign_new(self) -> list[int]:
        """Assign the partitions that the topic has more than before, and return them."""
        count = self._watch.look()
        # A broker with outdated metadata may report fewer partitions.
        if count is None or count <= self._count:
            return []
        added = [partition for partition in range(self._count, count) if self._owns(partition)]
        self._count = count
        places = [TopicPartition(self._topic, each, self._starts.get(each, OFFSET_BEGINNING)) for each in added]
        if places:
            self._consumer.incremental_assign(places)
        return added


def problem_of(error: KafkaError, what: str) -> ThresherError | None:
    """Return the problem that ends the reader, or None if the client recovers by itself."""
    if error.code() in _OUT_OF_RANGE:
        return PositionLost(f"{what}: the offset to read is not in the log any more: {error.str()}")
    if error.fatal():
        return BrokerLost(f"{what} cannot be read: {error.str()}")
    # The client asks for a group, which this reader does not need. The watch reports a missing topic.
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return None
    if refusal_of(error) in {Refusal.CLIENT, Refusal.TOPIC_DENIED}:
        return broker_problem(f"{what} cannot be read", error)
    return None


def _record(message: Message) -> ConsumerRecord:
    kind, timestamp_ms = message.timestamp()
    # The client's type annotations allow None, for messages that are errors.
    return ConsumerRecord(
        message.topic(),  # type: ignore[arg-type]
        message.partition(),  # type: ignore[arg-type]
        message.offset(),  # type: ignore[arg-type]
        timestamp_ms,
        _TIMESTAMP_TYPES[kind],
        message.key(),
        message.value(),
        headers_of(message),
    )


_TIMESTAMP_TYPES = {int(each): each for each in TimestampType}


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _ignore(_: KafkaError) -> None:
    pass
