"""Finds where a batch ends that the client cannot decompress, so that a reader can go on behind it.

librdkafka decompresses zstd up to `receive.message.max.bytes` only, and some smaller batches not at all. It reports the
batch's first offset and asks for the same batch again, for ever. The error does not name the batch's end. A fetch from
an offset inside the batch fails with the same first offset, and a fetch behind it does not: the end is searched for.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from thresher.core.secrets import revealed_properties
from thresher.kafka.fetch_sizes import bounded_fetches
from thresher.kafka.problem import BrokerLost, broker_problem

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
# How long the client may take to answer for one offset.
_PROBE_SECONDS = 5.0
# For how long further unreadable batches are looked for behind one: a producer may send any number of them.
_RUN_SECONDS = 60.0
UNREADABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
# Besides records, what tells that no unreadable batch is at an offset: the end of the partition, or of its log.
_ELSEWHERE = frozenset({KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


def unreadable_from(message: Message) -> int | None:
    """Return the first offset of the batch that a consumer's message reports as unreadable; None if it reports none."""
    error = message.error()
    return message.offset() if error is not None and error.code() in UNREADABLE else None


def end_of_batch(first: int, is_inside: Callable[[int], bool]) -> int:
    """Return the offset after a batch that begins at `first`.

    `is_inside` fetches from an offset, and returns whether the same batch was met: about twice for each doubling of the
    batch's records.
    """
    inside, step = first, 1
    while is_inside(inside + step):
        inside += step
        step *= 2
    outside = inside + step
    while outside - inside > 1:
        middle = (inside + outside) // 2
        if is_inside(middle):
            inside = middle
        else:
            outside = middle
    return outside


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A batch that the client cannot decompress: the offsets from `first` to before `after`."""

    first: int
    after: int


def unreadable_at(topic: str, partition: int, offset: int, properties: Mapping[str, Any]) -> Unreadable | None:
    """Return the batch that is the first thing met from an offset on, if it is unreadable. Uses a client of its own.

    `properties` are those of the client that could not read it. Raises `BrokerLost` or `BrokerRefused`.
    """
    what = f"{topic}/{partition} cannot be read at offset {offset}"
    consumer = Consumer(
        revealed_properties(
            {
                "log_level": 2,
                **bounded_fetches(properties),
                "group.id": f"{topic}.reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "fetch.error.backoff.ms": 50,
            }
        ),
        logger=_logger,
    )

    def met(start: int) -> int | None:
        """Return the first offset of the unreadable batch that is met from `start` on; None if another thing is.

        An error that tells nothing must not count as the batch's end: a reader would go on inside of it.
        """
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + _PROBE_SECONDS
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            error = None if message is None else message.error()
            if message is not None and (error is None or error.code() in UNREADABLE | _ELSEWHERE):
                return unreadable_from(message)
            if error is not None and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
                raise BrokerLost(f"{what}: {error.str()}")
        raise BrokerLost(f"{what}: no answer came for offset {start} in {_PROBE_SECONDS:g} s")

    with closing(consumer):
        try:
            first = met(offset)
            return (
                None
                if first is None
                else Unreadable(first=first, after=end_of_batch(first, lambda at: met(at) == first))
            )
        except KafkaException as error:
            raise broker_problem(what, error.args[0]) from error


def unreadable_run(
    topic: str, partition: int, offset: int, end: int, properties: Mapping[str, Any]
) -> Unreadable | None:
    """Return the unreadable batch at an offset, as one with those that follow it directly and begin before `end`.

    Raises `BrokerLost` or `BrokerRefused`.
    """
    deadline = time.monotonic() + _RUN_SECONDS
    found = unreadable_at(topic, partition, offset, properties)
    while found is not None and found.after < end and time.monotonic() < deadline:
        following = unreadable_at(topic, partition, found.after, properties)
        if following is None:
            break
        found = Unreadable(first=found.first, after=following.after)
    return found
