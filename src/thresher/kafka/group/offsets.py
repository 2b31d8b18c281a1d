"""Reads a consumer group's committed offsets without joining the group.

If a transaction with offsets of the group is still being ended, its outcome is waited for, so the answer is never
outdated. Each offset carries the metadata text that its writer stored with it.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from thresher.core.secrets import revealed_properties
from thresher.kafka.fetch_sizes import bounded_fetches
from thresher.kafka.problem import BrokerLost, broker_problem
from thresher.kafka.refusal import Refusal, refusal_of

_ASK_SECONDS, _RETRY_SECONDS = 2.0, 0.05
# The coordinator is starting or moving, or a transaction with offsets of the group is still open.
_PASSING = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """The next offset that a group reads in a partition, with the text that its writer stored beside it."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""

    def __post_init__(self) -> None:
        # The client leaves out a negative offset and reports success.
        if self.offset < 0 or self.partition < 0:
            raise ValueError(f"a committed offset and its partition are 0 or more: {self}")


def group_offsets(
    config: Mapping[str, Any], group: str, topic: str, partitions: Iterable[int], *, timeout_seconds: float = 15.0
) -> dict[int, GroupOffset]:
    """Return a group's committed offsets; a partition without an offset is left out.

    Waits for an open transaction with offsets of the group. Raises `BrokerLost` if it stays open or no broker answers,
    and `BrokerRefused`.
    """
    deadline = time.monotonic() + timeout_seconds
    places = [TopicPartition(topic, partition) for partition in partitions]
    what = f"the offsets of the group {group} in {topic} are unknown"
    # Not the admin client: its request crashes the process if the coordinator is not ready (librdkafka 2.16).
    with no_member(config, group) as client:
        while (left := deadline - time.monotonic()) > 0:
            try:
                found = client.committed(places, min(left, _ASK_SECONDS))
                errors = [place.error for place in found if place.error is not None]
            except KafkaException as error:
                # Without permission for the group the client finds no coordinator, and reports the reason by a poll.
                told = client.poll(0)
                why = None if told is None else told.error()
                found, errors = [], [error.args[0] if why is None or refusal_of(why) is Refusal.TRANSIENT else why]
            if not errors:
                return {
                    place.partition: GroupOffset(
                        topic=topic, partition=place.partition, offset=place.offset, metadata=place.metadata or ""
                    )
                    for place in found
                    if place.offset >= 0
                }
            for each in errors:
                if each.code() not in _PASSING:
                    raise broker_problem(what, each)
            time.sleep(_RETRY_SECONDS)
    raise BrokerLost(f"{what}: no stable answer in {timeout_seconds:g} s")


def group_metadata(config: Mapping[str, Any], group: str) -> object:
    """Return group metadata for a producer that is no member and sends the group's offsets. Sends no request."""
    with no_member(config, group) as client:
        return client.consumer_group_metadata()


@contextmanager
def no_member(config: Mapping[str, Any], group: str) -> Iterator[Consumer]:
    """Create a consumer that knows a group and does not join it. `read_committed` makes it wait for transactions."""
    client = Consumer(
        revealed_properties(
            {
                "log_level": 0,
                **bounded_fetches(config),
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
    )
    try:
        yield client
    finally:
        client.close()
