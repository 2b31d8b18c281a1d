"""The ends of partitions, as their leaders know them at the time of the request.

`first` is asked for before `stable`, and `stable` before `high`, so that first <= stable <= high even while a partition
grows. A broker that was cut off from its cluster may still answer with old ends. Only a record of our own that is read
back rules that out.

A producer that leaves a transaction open hides all that comes behind its first record, from all `read_committed`
readers, until the broker ends the transaction (`transaction.max.timeout.ms`, 15 minutes), and may begin the next one at
once. The client meets no error. `OpenTransactions` reports it.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from thresher.kafka.problem import BrokerLost, broker_problem

_logger = logging.getLogger(__name__)
_EVERY_MS = 20_000
# How long one transaction hides records before that is reported, and how often it is reported again.
HIDDEN_SECONDS = 60.0
_ADVICE = (
    "records wait behind an open transaction, and are received when it ends: 'kafka-transactions.sh find-hanging' "
    "names its producer, and 'abort' ends it"
)
# A topic and one of its partitions.
_Place = tuple[str, int]
_RETRY_SECONDS = 0.05
# A topic is new, or its leader moves: the next answer will differ.
_PASSING = frozenset(
    {
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        # "No leaders found": the client does not distinguish a missing topic from one without leaders.
        KafkaError._NOENT,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnds:
    """The offsets between which a partition's records lie."""

    first: int
    """The log start offset: the first record that is still there."""

    stable: int
    """The last stable offset: `read_committed` readers see nothing from here on. An open transaction holds it back."""

    high: int
    """The high watermark: the offset after the last replicated record."""


def partition_ends(
    client: AdminClient, topic: str, partitions: Iterable[int], *, timeout_seconds: float = 15.0
) -> dict[int, PartitionEnds]:
    """Return the ends of all these partitions of a topic. Raises `BrokerLost` or `BrokerRefused` if any is unknown."""
    deadline = time.monotonic() + timeout_seconds
    wanted = [TopicPartition(topic, partition) for partition in partitions]
    first = _offsets(client, dict.fromkeys(wanted, OffsetSpec.earliest()), IsolationLevel.READ_UNCOMMITTED, deadline)
    latest = dict.fromkeys(wanted, OffsetSpec.latest())
    stable = _offsets(client, latest, IsolationLevel.READ_COMMITTED, deadline)
    high = _offsets(client, latest, IsolationLevel.READ_UNCOMMITTED, deadline)
    return {place: PartitionEnds(first=first[place], stable=stable[place], high=high[place]) for place in sorted(first)}


def _offsets(
    client: AdminClient, asked: Mapping[TopicPartition, OffsetSpec], isolation: IsolationLevel, deadline: float
) -> dict[int, int]:
    """Ask until every partition has answered."""
    found: dict[int, int] = {}
    while len(found) < len(asked):
        missing = {place: spec for place, spec in asked.items() if place.partition not in found}
        left = deadline - time.monotonic()
        if left <= 0:
            raise BrokerLost(f"the ends of {_named(missing)} were not answered in time")
        answers = client.list_offsets(missing, isolation_level=isolation, request_timeout=left)
        for place, answer in answers.items():
            try:
                found[place.partition] = answer.result().offset
            except KafkaException as error:
                if error.args[0].code() not in _PASSING or time.monotonic() + _RETRY_SECONDS > deadline:
                    raise broker_problem(f"the ends of {_named([place])} are unknown", error.args[0]) from error
        if len(found) < len(asked):
            time.sleep(_RETRY_SECONDS)
    return found


def _named(places: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{place.topic}/{place.partition}" for place in places)


class OpenTransactions:
    """Reports partitions in which an open transaction hides records from one consumer. Its callback runs in `poll`.

    The client's statistics tell: its fetches have reached the last stable offset, and the high watermark is beyond.
    """

    def __init__(
        self,
        who: str,
        count: Callable[[], None] = lambda: None,
        *,
        every_ms: int = _EVERY_MS,
        hidden_seconds: float = HIDDEN_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`who` reads, in the log. `count` is called for each report of a partition."""
        self._who, self._count, self._every_ms = who, count, every_ms
        self._hidden_seconds, self._monotonic = hidden_seconds, monotonic
        # For each partition with hidden records, the last stable offset and since when it is that one.
        self._since: dict[_Place, tuple[int, float]] = {}
        self._told_until = 0.0

    def watching(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Return the properties of a consumer with this watch. A program's own statistics are left alone."""
        if not {"statistics.interval.ms", "stats_cb"}.isdisjoint(properties):
            return dict(properties)
        return {**properties, "statistics.interval.ms": self._every_ms, "stats_cb": self.take}

    def take(self, statistics: str) -> None:
        """Look at the client's statistics."""
        now = self._monotonic()
        hidden = _hidden(json.loads(statistics))
        known = self._since
        self._since = {
            place: known[place] if place in known and known[place][0] == stable else (stable, now)
            for place, (stable, _) in hidden.items()
        }
        long = [place for place, (_, since) in self._since.items() if now - since >= self._hidden_seconds]
        if not long or now < self._told_until:
            return
        self._told_until = now + self._hidden_seconds
        for _ in long:
            self._count()
        topic, partition = min(long)
        stable, records = hidden[topic, partition]
        _logger.warning(
            _ADVICE,
            extra={
                "reader": self._who,
                "topic": topic,
                "partition": partition,
                "offset": stable,
                "records": records,
                "partitions": len(long),
            },
        )


def _hidden(statistics: Mapping[str, Any]) -> dict[_Place, tuple[int, int]]:
    """Return the last stable offset of each partition with hidden records, and how many they are.

    A partition that is paused, or that the client still reads, has not reached that offset.
    """
    found = {}
    for topic, about in statistics.get("topics", {}).items():
        for partition, figures in about.get("partitions", {}).items():
            stable, high = figures.get("ls_offset", -1), figures.get("hi_offset", -1)
            if 0 <= stable < high and figures.get("eof_offset") == stable:
                found[topic, int(partition)] = (stable, high - stable)
    return found
