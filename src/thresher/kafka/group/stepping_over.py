"""Moves a consumer group over batches of a topic that no client can decompress.

A group stands still before such a batch, because it may hold records of its own. Stepping over it loses these for the
group: an operator decides that, for all such batches that follow each other. A group that has members is not changed:
they would commit their own offsets. Nor is one that has moved since it was looked at: it would read records again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from thresher.kafka.group.offsets import group_offsets, no_member
from thresher.kafka.partition_ends import PartitionEnds
from thresher.kafka.problem import BrokerRefused, broker_problem
from thresher.kafka.unreadable_batch import Unreadable, unreadable_run


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckGroup:
    """A group that stands at an offset of a partition, before an unreadable batch, or several that follow each other.

    Without `committed`, the group has no offset there and begins at the log's first record.
    """

    group: str
    topic: str
    partition: int
    offset: int
    batch: Unreadable
    committed: bool = True


class StuckGroups:
    """Finds where groups stand before the unreadable batches of one topic."""

    def __init__(self, topic: str, ends: Mapping[int, PartitionEnds], consumer: Mapping[str, Any]) -> None:
        """`consumer` has the properties of the groups' consumers: these decide which batches are unreadable."""
        self._topic, self._ends, self._consumer = topic, ends, consumer
        # Many groups stand at the same offset.
        self._known: dict[tuple[int, int], Unreadable | None] = {}

    def of(self, group: str, clients: Mapping[str, Any], *, from_first: bool = False) -> Iterator[StuckGroup]:
        """Yield where a group stands before an unreadable batch. Raises `BrokerLost` or `BrokerRefused`.

        With `from_first`, the group begins at the first record of a partition in which it has no offset.
        """
        partitions: Collection[int] = self._ends
        offsets = group_offsets(clients, group, self._topic, partitions)
        for partition, end in self._ends.items():
            found = offsets.get(partition)
            if found is None and not from_first:
                continue
            offset = end.first if found is None else found.offset
            if offset >= end.stable:
                continue
            place = (partition, offset)
            if place not in self._known:
                self._known[place] = unreadable_run(self._topic, partition, offset, end.stable, self._consumer)
            if (batch := self._known[place]) is not None:
                yield StuckGroup(
                    group=group, topic=self._topic, partition=partition, offset=offset, batch=batch,
                    committed=found is not None,
                )  # fmt: skip


def move_group(clients: Mapping[str, Any], stuck: StuckGroup, called: str) -> None:
    """Move a group behind the batch. `called` names the group for people.

    Raises `BrokerRefused` or `BrokerLost`, if the group has members too.
    """
    now = group_offsets(clients, stuck.group, stuck.topic, [stuck.partition]).get(stuck.partition)
    if (None if now is None else now.offset) != (stuck.offset if stuck.committed else None):
        raise BrokerRefused(f"{called} does not stand before the batch any more, and was not moved")
    place = TopicPartition(stuck.topic, stuck.partition, stuck.batch.after)
    refusal: KafkaError | None = None
    with no_member(clients, stuck.group) as client:
        try:
            answers = client.commit(offsets=[place], asynchronous=False) or ()
            refusal = next((each.error for each in answers if each.error is not None), None)
        except KafkaException as error:
            refusal = error.args[0]
    if refusal is not None:
        raise broker_problem(f"the group of {called} was not moved: stop its consumers first", refusal)
