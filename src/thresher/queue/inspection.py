"""Reads the state of queues: messages that wait, and messages in progress. Joins no group and changes nothing.

1. Only committed records count, up to each partition's end at the time when reading began.
2. A message waits until its queue's group has moved past it. Without a group, every message of the queue waits.
3. A message is in progress from its Start to its End, as far as retention has kept the markers. A message that was
   given back is in progress until the tracker has redelivered it.
4. A batch that the client cannot decompress is stepped over, and told to the caller.
"""

import base64
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from urllib.parse import unquote_to_bytes

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.group.offsets import GroupOffset, group_offsets
from thresher.kafka.partition_ends import PartitionEnds, partition_ends
from thresher.kafka.problem import BrokerRefused, broker_problem
from thresher.kafka.record_headers import headers_of
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.queue.configuration import QueueConfig
from thresher.queue.message import Message as ReceivedMessage
from thresher.queue.problem import TopicsUnsuitable
from thresher.queue.queue import group_of
from thresher.queue.topic_records import Told, TopicRecords
from thresher.queue.wire.marker import Marker, MarkerMalformed, MarkerType, MessageId, decode
from thresher.queue.wire.record import Record, record_of

_ANSWER_SECONDS = 15.0
# How far before the end the search for the newest messages begins.
_FIRST_STEP = 1_000
_GROUP_PREFIX = group_of(b"")
# How many Ends are remembered: more than the distance between an End and a later copy of its Start.
_ENDED = 200_000
_Origin = tuple[MessageId, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peeked:
    """A message of the message topic, and whether it still waits for a consumer."""

    record: Record
    written_ms: int
    waiting: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    """A topic. `records` is a difference of offsets, so it includes transaction markers and removed records."""

    name: str
    partitions: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """A queue. `lag_records` are the message topic's records, of all queues, that its group has not read yet.

    If the broker refuses access to the group, `problem` holds the reason, and the group's figures are None.
    """

    queue: bytes
    members: int | None
    lag_records: int | None
    in_progress: int
    delayed: int
    oldest_started_ms: int | None
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The topics, the queues by id, and the number of records in the marker topic that are not markers."""

    topics: tuple[TopicStats, ...]
    queues: tuple[QueueStats, ...]
    malformed_markers: int


class StartedMessages:
    """The messages in progress, rebuilt from the markers of one partition after another."""

    def __init__(self) -> None:
        # For each message: its queue, the time of its Start, and its origin.
        self._started: dict[MessageId, tuple[bytes, int, _Origin]] = {}
        # Messages that have ended, by id, newest last: a copy of a Start may come after the End.
        self._ended: dict[MessageId, None] = {}

    def take(self, marker: Marker, timestamp_ms: int) -> None:
        """Process the next marker of a partition. A rewritten Start keeps the time of the first one."""
        place = marker.message_id
        if marker.type is MarkerType.START:
            known = self._started.get(place)
            if known is not None and known[2] == _origin(marker):
                return
            if marker.read_to is None or (known is None and place not in self._ended):
                # If another message had this id, the tracker redelivers that one.
                self._started[place] = (marker.key, timestamp_ms, _origin(marker))
        elif marker.type is MarkerType.END:
            known = self._started.get(place)
            # Only an End with an origin tells which of several messages with this id has ended.
            if known is not None and (marker.origin_id is None or known[2] == _origin(marker)):
                del self._started[place]
            self._ended.pop(place, None)
            self._ended[place] = None
            if len(self._ended) > _ENDED:
                del self._ended[next(iter(self._ended))]

    def counts(self) -> Counter[bytes]:
        """Return the number of messages in progress, by queue."""
        return Counter(queue for place, (queue, _, _) in self._started.items() if place.partition >= 0)

    def delayed(self) -> Counter[bytes]:
        """Return the number of messages that were sent with a delay and still wait, by queue."""
        return Counter(queue for place, (queue, _, _) in self._started.items() if place.partition < 0)

    def oldest_ms(self, queue: bytes) -> int | None:
        """Return the time of the Start of a queue's oldest message in progress, if there is one."""
        found = (at for place, (each, at, _) in self._started.items() if each == queue and place.partition >= 0)
        return min(found, default=None)


def _origin(marker: Marker) -> _Origin:
    return marker.origin_id or marker.message_id, marker.enqueued_at_ms


def queue_of(group: str) -> bytes | None:
    """Return the id of the queue that this consumer group belongs to; None for any other group."""
    return unquote_to_bytes(group.removeprefix(_GROUP_PREFIX)) if group.startswith(_GROUP_PREFIX) else None


def lag(ends: Mapping[int, PartitionEnds], offsets: Mapping[int, GroupOffset]) -> int:
    """Return the number of offsets that a group has not read.

    A partition without an offset counts from its first record.
    """
    return sum(end.high - _next(end, offsets.get(partition)) for partition, end in ends.items())


def chosen(found: Iterable[Peeked], most: int, *, last: bool) -> list[Peeked]:
    """Return the oldest or the newest messages of all partitions, oldest first."""
    in_order = sorted(found, key=lambda each: (each.written_ms, each.record.message_id))
    return in_order[-most:] if last else in_order[:most]


def described(message_id: MessageId, message: ReceivedMessage | Record) -> dict[str, object]:
    """Return a message as a JSON object that keeps every byte."""
    return {
        "id": str(message_id),
        "origin_id": str(message.origin_id),
        "delivery_count": message.delivery_count,
        "enqueued_at": time_of(message.enqueued_at_ms).isoformat(),
        "headers": [{"name": name, **as_json_text("value", value)} for name, value in message.headers],
        **as_json_text("payload", message.payload),
    }


def as_json_text(name: str, content: bytes | None) -> dict[str, str | None]:
    """Return content as text under its name, or in base64 under `<name>_base64` if it is not UTF-8."""
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}


def time_of(milliseconds: int) -> datetime:
    """Convert a Kafka timestamp."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def reached(config: QueueConfig, topics: Iterable[str]) -> tuple[Admin, dict[str, int]]:
    """Check that the broker answers and has these topics; return an admin client and the number of partitions by topic.

    Raises `TopicsUnsuitable`, `BrokerRefused` or `BrokerLost`.
    """
    admin = Admin.of({"log_level": 2, **config.clients})
    try:
        admin.require_answer()
        facts = admin.facts(list(topics))
    except KafkaException as error:
        raise broker_problem(f"{config.bootstrap_servers} cannot be used", error.args[0]) from error
    partitions = {name: fact.partitions for name, fact in facts.items() if isinstance(fact, TopicFacts)}
    errors = {name: fact for name, fact in facts.items() if isinstance(fact, KafkaError)}
    for name, why in errors.items():
        if refusal_of(why) is not Refusal.TOPIC:
            raise broker_problem(f"the topic {name} cannot be used", why)
    if errors:
        raise TopicsUnsuitable(f"there is no topic {', '.join(sorted(errors))}: make it with 'thresher queue init'")
    return admin, partitions


def peek(
    config: QueueConfig, queue: bytes, most: int, *, last: bool, handed_off: bool, told: Told = lambda _: None
) -> list[Peeked]:
    """Return a queue's oldest or newest waiting messages; with `handed_off`, also started ones still in the topic.

    `told` gets a sentence on each batch that cannot be decompressed: its messages are not shown.
    """
    topic = config.message_topic
    admin, partitions = reached(config, [topic])
    numbers = range(partitions[topic])
    ends = partition_ends(admin.client, topic, numbers)
    offsets = group_offsets(config.clients, group_of(queue), topic, numbers)
    found: list[Peeked] = []
    with closing(TopicRecords(config, told)) as reader:
        for partition, end in ends.items():
            waiting_from = _next(end, offsets.get(partition))
            first = end.first if handed_off else waiting_from
            place = TopicPartition(topic, partition, first)
            read = _newest if last else _oldest
            found += [_peeked(each, waiting_from) for each in read(reader, place, end.stable, queue, most)]
    return chosen(found, most, last=last)


def stats(config: QueueConfig, queues: Iterable[bytes] = (), *, told: Told = lambda _: None) -> Stats:
    """Return the state of these queues, or of all that have a consumer group, or messages in progress or delayed."""
    names = (config.message_topic, config.marker_topic, config.queues_topic, config.dead_topic)
    admin, partitions = reached(config, names)
    ends = {name: partition_ends(admin.client, name, range(partitions[name])) for name in names}
    started, malformed = _started(config, ends[config.marker_topic], told)
    members = _members(admin)
    in_progress, delayed, messages = started.counts(), started.delayed(), ends[config.message_topic]
    wanted = set(queues)
    found = []
    for queue in sorted(wanted or members.keys() | in_progress.keys() | delayed.keys()):
        count, behind, problem = members.get(queue, 0), None, None
        try:
            offsets = group_offsets(config.clients, group_of(queue), config.message_topic, messages)
            # Skip queues on other topics: their groups have the same prefix.
            if not offsets and queue not in wanted and not in_progress[queue] and not delayed[queue]:
                continue
            behind = lag(messages, offsets)
        except BrokerRefused as error:
            count, problem = None, str(error)
        found.append(
            QueueStats(
                queue=queue,
                members=count,
                lag_records=behind,
                in_progress=in_progress[queue],
                delayed=delayed[queue],
                oldest_started_ms=started.oldest_ms(queue),
                problem=problem,
            )
        )
    return Stats(
        topics=tuple(
            TopicStats(
                name=name,
                partitions=len(ends[name]),
                records=sum(end.high - end.first for end in ends[name].values()),
            )
            for name in names
        ),
        queues=tuple(found),
        malformed_markers=malformed,
    )


def queues_with_groups(admin: Admin) -> set[bytes]:
    """Return the queues that have a consumer group. Raises `BrokerLost` or `BrokerRefused`."""
    return set(_members(admin))


def _started(config: QueueConfig, ends: Mapping[int, PartitionEnds], told: Told) -> tuple[StartedMessages, int]:
    """Read the markers; return the messages in progress, and the number of records that are not markers."""
    started, malformed = StartedMessages(), 0
    with closing(TopicRecords(config, told)) as reader:
        for partition, end in ends.items():
            for record in reader.records(TopicPartition(config.marker_topic, partition, end.first), end.stable):
                try:
                    started.take(decode(record.value() or b""), record.timestamp()[1])
                except MarkerMalformed:
                    malformed += 1
    return started, malformed


def _members(admin: Admin) -> dict[bytes, int | None]:
    """Return the number of members of each queue's consumer group; None if the broker refuses access to the group."""
    try:
        listed = admin.client.list_consumer_groups(request_timeout=_ANSWER_SECONDS).result()
        if listed.errors:
            raise listed.errors[0]
        groups = {each.group_id: queue for each in listed.valid if (queue := queue_of(each.group_id)) is not None}
        if not groups:
            return {}
        described = admin.client.describe_consumer_groups(list(groups), request_timeout=_ANSWER_SECONDS)
        return {groups[group]: _member_count(answer) for group, answer in described.items()}
    except KafkaException as error:
        raise broker_problem("the consumer groups could not be listed", error.args[0]) from error


def _member_count(answer: Future[Any]) -> int | None:
    try:
        return len(answer.result().members)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise
        return None


def _next(end: PartitionEnds, offset: GroupOffset | None) -> int:
    """Return the offset that a group reads next, limited to the offsets that exist."""
    return end.first if offset is None else min(max(offset.offset, end.first), end.high)


def _oldest(reader: TopicRecords, place: TopicPartition, end: int, queue: bytes, most: int) -> list[Message]:
    return list(islice((each for each in reader.records(place, end) if each.key() == queue), most))


def _newest(reader: TopicRecords, place: TopicPartition, end: int, queue: bytes, most: int) -> list[Message]:
    """Read from further and further before the end, until enough messages are found or everything was read."""
    step = max(_FIRST_STEP, 4 * most)
    while True:
        start = TopicPartition(place.topic, place.partition, max(place.offset, end - step))
        found = deque((each for each in reader.records(start, end) if each.key() == queue), maxlen=most)
        if len(found) == most or start.offset <= place.offset:
            return list(found)
        step *= 8


def _peeked(message: Message, waiting_from: int) -> Peeked:
    message_id = MessageId(message.partition() or 0, message.offset() or 0)
    timestamp = message.timestamp()[1]
    return Peeked(
        record=record_of(message_id, message.value(), headers_of(message), timestamp),
        written_ms=timestamp,
        waiting=message_id.offset >= waiting_from,
    )
