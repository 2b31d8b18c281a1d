"""The dead letters of queues: lists them, returns them to their queues, or drops them.

1. All changes use one transactional id. A process that changes letters first takes this id over, then reads the topic
   up to its high watermark. So it sees all earlier changes, even those behind a tracker's open transaction.
2. Replaying a letter is one transaction: the message in its queue, and a tombstone that removes the letter. A crash
   leaves both or neither.
3. A replayed message starts over: its delivery count begins at one, and its ttl at its next Start. It keeps its origin
   id, so that it has the same key if it becomes a dead letter again.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from thresher.core.errors import ThresherError
from thresher.kafka.admin import Admin
from thresher.kafka.assigned_reader import AssignedReader, ConsumerRecord, EndOfPartition
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.problem import BrokerLost, broker_problem
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

Chosen = Callable[[DeadLetter], bool]


class ChangeRefused(ThresherError):  # noqa: N818
    """Not all letters were replayed or dropped. Each completed transaction took effect as a whole."""


def dead_letters(config: QueueConfig, *, waiting: bool = False) -> list[DeadLetter]:
    """Return the dead letters, earliest first. Raises `BrokerLost` or `BrokerRefused`.

    With `waiting`, this waits for open transactions, which may hide later letters and removals.
    """
    # The partition is part of the key: a key's partition changes when partitions are added, and partitions have no
    # common order.
    found: dict[tuple[int, bytes], DeadLetter] = {}
    parts: dict[tuple[int, bytes], bytes] = {}
    for record in _records(config, waiting=waiting):
        key = (record.partition, record.key or b"")
        # A tombstone removes a letter; the last record of a key counts.
        found.pop(key, None)
        parts.pop(key, None)
        if record.value is not None and is_part(key[1]):
            parts[key] = record.value
        elif record.value is not None and (letter := _letter(record, key[1])) is not None:
            found[key] = letter
    letters = [
        assembled(letter, {key: parts[place, key] for key in letter.parts if (place, key) in parts})
        for (place, _), letter in found.items()
    ]
    return sorted(letters, key=lambda each: (each.written_ms, each.record.message_id))


def replay(config: QueueConfig, chosen: Chosen) -> int:
    """Return the chosen letters to their queues, and return their number.

    Raises `ChangeRefused`, before anything is changed if a letter does not have its message's whole content.
    """

    def records(letter: DeadLetter, partitions: int) -> list[Produced]:
        message = replace(letter.record, delivery_count=1, first_started_ms=None)
        place = random.randrange(partitions)  # noqa: S311 - to spread messages
        return [(config.message_topic, message.payload, letter.queue, place, 0, headers_of(message))]

    return _change(config, chosen, records, whole=True)


def drop(config: QueueConfig, chosen: Chosen) -> int:
    """Remove the chosen letters permanently, and return their number. Raises `ChangeRefused`."""
    return _change(config, chosen, lambda _letter, _partitions: [])


def _change(
    config: QueueConfig,
    chosen: Chosen,
    records: Callable[[DeadLetter, int], Sequence[Produced]],
    *,
    whole: bool = False,
) -> int:
    done = 0
    with _producer(config) as producer:
        letters = [letter for letter in dead_letters(config, waiting=True) if chosen(letter)]
        if whole and (cut := next((letter for letter in letters if letter.incomplete), None)) is not None:
            raise ChangeRefused(
                f"nothing was changed: message {cut.record.origin_id} cannot be replayed: {cut.incomplete}; send "
                "it again from its source, and drop the letter, or choose others by their ids"
            )
        # Who drops letters needs no right on the message topic.
        partitions = producer.partitions(config.message_topic) if whole else 0
        if not isinstance(partitions, int):
            raise broker_problem(f"the topic {config.message_topic} cannot be used", partitions, rights="Write")
        try:
            for some in _batches(letters):
                written = [
                    record
                    for letter in some
                    for record in (*records(letter, partitions), *_tombstones(config.dead_topic, letter))
                ]
                producer.begin()
                producer.produce(enumerate(written))
                if faults := producer.flush():
                    first = next((each for each in faults if each.refusal is not Refusal.CAUSED_BY_ANOTHER), faults[0])
                    raise ChangeRefused(
                        f"{done} dead letters were replayed or dropped; then {first.topic} refused a record: {first.why}"
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


def _batches(letters: Sequence[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Yield the letters of each transaction."""
    some: list[DeadLetter] = []
    size = 0
    for letter in letters:
        if some and (len(some) >= _MOST_LETTERS or size + letter.record.size > _MOST_BYTES):
            yield some
            some, size = [], 0
        some.append(letter)
        size += letter.record.size
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
