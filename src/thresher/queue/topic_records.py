"""Reads the committed records of a topic of queues, up to an end that the caller has asked for. Joins no group.

A batch that the client cannot decompress is stepped over, and told to the caller: reading changes nothing.
"""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from thresher.core.secrets import revealed_properties
from thresher.kafka.fetch_sizes import bounded_fetches
from thresher.kafka.problem import BrokerLost, broker_problem
from thresher.kafka.refusal import Refusal, refusal_of
from thresher.kafka.unreadable_batch import unreadable_at, unreadable_from
from thresher.queue.configuration import QueueConfig

_logger = logging.getLogger(f"{__name__}.client")
_logger.setLevel(logging.CRITICAL)
_ANSWER_SECONDS = 15.0
# Records that are read at once.
_RECORDS = 500
# Gets a sentence on each batch that is stepped over.
Told = Callable[[str], object]


class TopicRecords:
    """Reads the committed records of partitions, one partition after another."""

    def __init__(self, config: QueueConfig, told: Told) -> None:
        self._properties: dict[str, Any] = {
            "log_level": 2,
            "fetch.wait.max.ms": 10,
            **bounded_fetches({**config.clients, **config.consumer}),
            # The client requires a group name, but never joins the group.
            "group.id": f"{config.message_topic}.reader",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            # Records that retention removes meanwhile are skipped.
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
        }
        self.client = Consumer(revealed_properties(self._properties), logger=_logger)
        self._told = told
        # The unreadable batches that were told: a partition may be read several times.
        self._known: set[tuple[str, int, int]] = set()

    def close(self) -> None:
        """End the client and its connections."""
        self.client.close()

    def records(self, place: TopicPartition, end: int) -> Iterator[Message]:
        """Yield a partition's committed records from an offset up to `end`, exclusive.

        Raises `BrokerLost` or `BrokerRefused`.
        """
        if place.offset >= end:
            return
        what = f"{place.topic}/{place.partition} cannot be read"
        self.client.assign([place])
        heard = time.monotonic()
        while True:
            for message in _consumed(self.client, what):
                heard = time.monotonic()
                if (error := message.error()) is not None and error.code() != KafkaError._PARTITION_EOF:
                    if (first := unreadable_from(message)) is not None:
                        after = self._step_over(place, first)
                        if after >= end:
                            return
                        # The other messages of this read are stale: reading begins again behind the batch.
                        break
                    _require_passing(what, error)
                    continue
                offset = message.offset() or 0
                if error is None and offset < end:
                    yield message
                # Transaction markers take offsets too: only the client's end-of-partition event shows that no record
                # follows.
                if offset >= (end - 1 if error is None else end):
                    return
            if time.monotonic() - heard > _ANSWER_SECONDS:
                raise BrokerLost(f"{what}: nothing came for {_ANSWER_SECONDS:g} s")

    def _step_over(self, place: TopicPartition, first: int) -> int:
        """Go on behind an unreadable batch, and return the offset there."""
        found = unreadable_at(place.topic, place.partition, first, self._properties)
        after = first if found is None else found.after
        if found is not None and (at := (place.topic, place.partition, first)) not in self._known:
            self._known.add(at)
            self._told(
                f"{place.topic}/{place.partition}: offsets {first} to {after - 1} cannot be decompressed, and are left "
                "out; a larger receive.message.max.bytes in 'consumer' may let the batch be read"
            )
        self.client.assign([TopicPartition(place.topic, place.partition, after)])
        return after


def _consumed(reader: Consumer, what: str) -> list[Message]:
    try:
        # `consume` waits for the full number of records; `poll` returns with the first one.
        first = reader.poll(1.0)
        return [] if first is None else [first, *reader.consume(_RECORDS, 0)]
    except KafkaException as error:
        raise broker_problem(what, error.args[0]) from error


def _require_passing(what: str, error: KafkaError) -> None:
    """Raise for an error that the client does not retry. Access to the group is not needed."""
    if refusal_of(error) is not Refusal.TRANSIENT and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
        raise broker_problem(what, error)
