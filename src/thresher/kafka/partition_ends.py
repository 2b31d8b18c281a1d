"""The ends of partitions, as their leaders know them at the time of the request.

`first` is asked for before `stable`, and `stable` before `high`, so that first <= stable <= high even while a partition
grows. A broker that was cut off from its cluster may still answer with old ends. Only a record of our own that is read
back rules that out.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from thresher.kafka.problem import BrokerLost, broker_problem

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
