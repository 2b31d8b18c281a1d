"""The dead letters of queues: lists them, returns them to their queues, or drops them.

1. All changes use one transactional id. A process that changes letters first takes this id over, then reads the topic
   up to its high watermark. So it sees all earlier changes, even those behind a tracker's open transaction.
2. Replaying a letter is one transaction: the message in its queue, and a tombstone that removes the letter. A crash
   leaves both or neither.
3. A replayed message starts over: its delivery count begins at one, and its ttl at its next Start. It keeps its origin
   id, so that it has the same key if it becomes a dead letter again.
4. A producer decides how large letters are. So only their heads are kept in memory, a few kilobytes each, and contents
   are read again when they are needed, one at a time.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from confluent_kafka import KafkaException

from thresher.core.errors import ThresherError
from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import AssignedReader, ConsumerRecord, EndOfPartition
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.problem import BrokerLost, BrokerRefused, broker_problem
from thresher.kafka.producer_problem import ProducerFenced, ProducerProblem
from thresher.kafka.refusal import Refusal
from thresher.kafka.transactional import Produced, TransactionalProducer
from thresher.queue.clients import LARGEST_BYTES
from thresher.queue.configuration import QueueConfig
from thresher.queue.wire.dead_letter import DeadLetter, assembled, dead_letter_of, is_part
from thresher.queue.wire.marker import MessageId
from thresher.queue.wire.record import headers_of

# The limits of one transaction: letters, and approximate bytes.
_MOST_LETTERS, _MOST_BYTES = 500, 4_000_000
# The broker checks the size of a batch. Small batches ensure that letters that fit alone also fit together.
_SMALL_BATCHES = {"batch.size": 16_384}
_READ_SECONDS, _POLL_SECONDS = 60.0, 0.5
# Offsets that are read and passed rather than sought.
_NEAR_OFFSETS = 100

# How much of a letter's payload a head keeps, and of its reason, which a stranger's record may make long.
_PREVIEW_BYTES, _REASON_CHARACTERS = 1_024, 1_000


class LetterHead(NamedTuple):
    """What is kept of a dead letter: all but its headers, and no more than the beginning of its payload.

    `part_places` are the offsets of the letter's parts, those that are there. `payload_bytes` is None if parts hold the
    payload: then `size` says how large they are, and `preview` is empty.
    """

    letter: DeadLetter
    payload_bytes: int | None
    size: int
    part_places: tuple[int, ...]

    @property
    def id(self) -> MessageId:
        """The message's origin id."""
        return self.letter.record.origin_id

    @property
    def preview(self) -> bytes:
        """The beginning of the payload."""
        return self.letter.record.payload


Chosen = Callable[[LetterHead], bool]


class ChangeRefused(ThresherError):  # noqa: N818
    """Not all letters were replayed or dropped. Each completed transaction took effect as a whole."""


def dead_letters(config: QueueConfig, *, waiting: bool = False) -> list[LetterHead]:
    """Return the heads of the dead letters, earliest first. Raises `BrokerLost` or `BrokerRefused`.

    With `waiting`, this waits for open transactions, which may hide later letters and removals.
    """
    # The partition is part of the key: a key's partition changes when partitions are added, and partitions have no
    # common order.
    found: dict[tuple[int, bytes], LetterHead] = {}
    # The offset and the size of each part.
    parts: dict[tuple[int, bytes], tuple[int, int]] = {}
    for record in _records(config, waiting=waiting):
        key = (record.partition, record.key or b"")
        # A tombstone removes a letter; the last record of a key counts.
        found.pop(key, None)
        parts.pop(key, None)
        if record.value is not None and is_part(key[1]):
            parts[key] = (record.offset, len(record.value))
        elif record.value is not None and (letter := _letter(record, key[1])) is not None:
            found[key] = _head(letter)
    heads = [
        _with_parts(head, [parts[place, key] for key in head.letter.parts if (place, key) in parts])
        for (place, _), head in found.items()
    ]
    return sorted(heads, key=lambda each: (each.letter.written_ms, each.letter.record.message_id))


def contents(config: QueueConfig, heads: Iterable[LetterHead]) -> Iterator[DeadLetter]:
    """Yield the whole letters of these heads, one at a time. Raises `ChangeRefused` for one that was changed meanwhile.

    Letters that are close to each other in one partition are read fastest.
    """
    with _LetterReader(config) as reader:
        for head in heads:
            yield reader.read(head)


def replay(config: QueueConfig, chosen: Chosen) -> int:
    """Return the chosen letters to their queues, and return their number.

    Raises `ChangeRefused`, before anything is changed if a letter does not have its message's whole content.
    """

    def records(reader: _LetterReader, heads: Sequence[LetterHead], partitions: int) -> Iterator[Produced]:
        for letter in map(reader.read, heads):
            _require_whole(letter)
            message = replace(letter.record, delivery_count=1, first_started_ms=None)
            place = random.randrange(partitions)  # noqa: S311 - to spread messages
            yield (config.message_topic, message.payload, letter.queue, place, 0, headers_of(message))

    return _change(config, chosen, records, whole=True)


def drop(config: QueueConfig, chosen: Chosen) -> int:
    """Remove the chosen letters permanently, and return their number. Raises `ChangeRefused`."""
    return _change(config, chosen, lambda _reader, _heads, _partitions: ())


def _change(
    config: QueueConfig,
    chosen: Chosen,
    records: Callable[["_LetterReader", Sequence[LetterHead], int], Iterable[Produced]],
    *,
    whole: bool = False,
) -> int:
    done = 0
    with _producer(config) as producer, _LetterReader(config) as reader:
        heads = [head for head in dead_letters(config, waiting=True) if chosen(head)]
        if whole:
            for head in heads:
                _require_whole(head.letter)
            # In the order of the log, reading them again takes few seeks.
            heads.sort(key=lambda head: head.letter.record.message_id)
        _require_writable(config)
        # Who drops letters needs no right on the message topic.
        partitions = producer.partitions(config.message_topic) if whole else 0
        if not isinstance(partitions, int):
            raise broker_problem(f"the topic {config.message_topic} cannot be used", partitions, rights="Write")
        try:
            for some in _batches(heads, _MOST_BYTES if whole else None):
                tombstones = (each for head in some for each in _tombstones(config.dead_topic, head.letter))
                written = [*records(reader, some, partitions), *tombstones]
                producer.begin()
                producer.produce(enumerate(written))
                if faults := producer.flush():
                    first = next((each for each in faults if each.refusal is not Refusal.CAUSED_BY_ANOTHER), faults[0])
                    raise ChangeRefused(
                        f"{done} dead letters were replayed or dropped; then "
                        f"{first.topic} refused a record: {first.why}"
                    )
                producer.commit()
                done += len(some)
        except ProducerFenced as error:
            raise ChangeRefused(
                f"{done} dead letters were replayed or dropped; then another process began to replay or drop letters: "
                f"{error}"
            ) from error
        except ProducerProblem as error:
            raise ChangeRefused(
                f"{done} dead letters were replayed or dropped, and perhaps {_MOST_LETTERS} more: {error}; run "
                "'thresher queue dead list', and repeat the command for the letters that are left"
            ) from error
    return done


def _require_writable(config: QueueConfig) -> None:
    """Raise `BrokerRefused` if we may not write dead letters: the client would only say that it purged the records."""
    topic = config.dead_topic
    try:
        facts = Admin.of(config.clients).topic(topic)
    except KafkaException as error:
        raise broker_problem(f"the topic {topic} cannot be used", error.args[0]) from error
    if facts is not None and not facts.writable:
        raise BrokerRefused(f"the topic {topic} cannot be used: we may not write to it; grant Write on it")


def _require_whole(letter: DeadLetter) -> None:
    if letter.incomplete:
        raise ChangeRefused(
            f"nothing was changed: message {letter.record.origin_id} cannot be replayed: {letter.incomplete}; send "
            "it again from its source, and drop the letter, or choose others by their ids"
        )


def _batches(heads: Sequence[LetterHead], most_bytes: int | None) -> Iterator[list[LetterHead]]:
    """Yield the letters of each transaction; `most_bytes` limits their contents."""
    some: list[LetterHead] = []
    size = 0
    for head in heads:
        if some and (len(some) >= _MOST_LETTERS or (most_bytes is not None and size + head.size > most_bytes)):
            yield some
            some, size = [], 0
        some.append(head)
        size += head.size
    if some:
        yield some


def _tombstones(topic: str, letter: DeadLetter) -> Iterator[Produced]:
    # Written to the letter's own partition, even if partitions were added since.
    place = letter.record.message_id.partition
    for key in (letter.key, *letter.parts):
        yield (topic, None, key, place, 0, None)


@contextmanager
def _producer(config: QueueConfig) -> Iterator[TransactionalProducer]:
    properties: Mapping[str, Any] = {
        **config.clients,
        **config.producer,
        "message.max.bytes": LARGEST_BYTES,
        **_SMALL_BATCHES,
    }
    producer = TransactionalProducer(f"{config.dead_topic}.changes", properties)
    try:
        producer.init(config.dead_topic)
        yield producer
    finally:
        producer.discard()


def _letter(record: ConsumerRecord, key: bytes) -> DeadLetter | None:
    place = MessageId(record.partition, record.offset)
    return dead_letter_of(place, key, record.value or b"", record.headers, record.timestamp_ms)


def _head(letter: DeadLetter) -> LetterHead:
    """Return a letter without its headers, and with the beginning of its payload."""
    record = letter.record
    kept = replace(record, payload=record.payload[:_PREVIEW_BYTES], headers=())
    return LetterHead(
        letter=letter._replace(record=kept, reason=letter.reason[:_REASON_CHARACTERS]),
        payload_bytes=len(record.payload),
        size=record.size,
        part_places=(),
    )


def _with_parts(head: LetterHead, parts: Sequence[tuple[int, int]]) -> LetterHead:
    """Return a head with the offsets and sizes of its parts."""
    if not head.letter.parts:
        return head
    return LetterHead(
        letter=head.letter._replace(missing=len(head.letter.parts) - len(parts)),
        payload_bytes=None,
        size=sum(size for _, size in parts),
        part_places=tuple(offset for offset, _ in parts),
    )


class _LetterReader:
    """Reads letters again, by their offsets. A context manager."""

    def __init__(self, config: QueueConfig) -> None:
        self._topic, self._properties = config.dead_topic, {**config.clients, **config.consumer}
        # The reader of one partition, and its next offset.
        self._reader: AssignedReader | None = None
        self._partition = self._next = -1

    def __enter__(self) -> "_LetterReader":
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def read(self, head: LetterHead) -> DeadLetter:
        """Return the whole letter. Raises `ChangeRefused` if one of its records is gone, and `BrokerLost`."""
        place = head.letter.record.message_id
        wanted = {*head.part_places, place.offset}
        last, found = max(wanted), dict[int, ConsumerRecord]()
        for record in self._from(place.partition, min(wanted), last):
            if record.offset in wanted:
                found[record.offset] = record
        letter = _letter(found[place.offset], head.letter.key) if found.keys() == wanted else None
        if letter is None:
            raise ChangeRefused(f"the dead letter of message {head.id} was changed meanwhile: repeat the command")
        parts = {found[each].key or b"": found[each].value or b"" for each in head.part_places}
        return assembled(letter, parts)

    def _from(self, partition: int, first: int, last: int) -> Iterator[ConsumerRecord]:
        """Yield a partition's records from an offset to another one; the reader stays behind the last."""
        reader = self._at(partition, first)
        deadline = time.monotonic() + _READ_SECONDS
        while time.monotonic() < deadline:
            for event in reader.poll(_POLL_SECONDS, at_most=1):
                if isinstance(event, ConsumerRecord):
                    deadline = time.monotonic() + _READ_SECONDS
                    self._next = event.offset + 1
                    if first <= event.offset <= last:
                        yield event
                    if event.offset >= last:
                        return
                elif isinstance(event, EndOfPartition) and event.offset > last:
                    self._next = event.offset
                    return
        raise BrokerLost(f"{self._topic}/{partition} was not read from offset {first} in {_READ_SECONDS:g} s")

    def _at(self, partition: int, offset: int) -> AssignedReader:
        """Return a reader of the partition that is at this offset, or shortly before it."""
        if self._reader is not None and self._partition == partition:
            if not 0 <= offset - self._next < _NEAR_OFFSETS:
                self._reader.seek(partition, offset)
            return self._reader
        if self._reader is not None:
            self._reader.close()
        self._partition, self._next = partition, offset
        starts = {partition: offset}
        self._reader = AssignedReader(
            self._topic, self._properties, starts=starts, owns=lambda each: each == partition
        ).__enter__()
        return self._reader


def _records(config: QueueConfig, *, waiting: bool) -> Iterator[ConsumerRecord]:
    """Yield the committed records of the dead-letter topic, in order within each partition, up to its end."""
    with AssignedReader(config.dead_topic, {**config.clients, **config.consumer}) as reader:
        left = set(reader.partitions)
        ends = partition_ends(Admin.of(config.clients).client, config.dead_topic, left) if waiting else {}
        deadline = time.monotonic() + _READ_SECONDS
        while left:
            events: Iterable[Any] = reader.poll(_POLL_SECONDS)
            if time.monotonic() > deadline:
                raise BrokerLost(f"{config.dead_topic} was not read to its end in {_READ_SECONDS:g} s")
            for event in events:
                if isinstance(event, ConsumerRecord):
                    deadline = time.monotonic() + _READ_SECONDS
                    if event.partition in left:
                        yield event
                elif isinstance(event, EndOfPartition) and (
                    event.partition not in ends or event.offset >= ends[event.partition].high
                ):
                    left.discard(event.partition)
