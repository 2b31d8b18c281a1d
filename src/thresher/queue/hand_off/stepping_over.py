"""Moves the groups of queues over batches of the message topic that no client can decompress.

See `kafka/group/stepping_over`. Messages of the queue in such a batch are then never delivered.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from thresher.kafka.group.stepping_over import StuckGroup, StuckGroups, move_group
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.unreadable_batch import Unreadable
from thresher.queue.configuration import QueueConfig
from thresher.queue.inspection import queues_with_groups, reached
from thresher.queue.queue import group_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """A queue whose group stands at an offset of a partition, before an unreadable batch."""

    queue: bytes
    partition: int
    offset: int
    batch: Unreadable


def stuck_queues(config: QueueConfig, queues: Iterable[bytes] = ()) -> Iterator[Stuck]:
    """Yield where the groups of these queues, or of all that have a group, stand before an unreadable batch.

    Raises `BrokerLost`, `BrokerRefused` or `TopicsUnsuitable`.
    """
    topic = config.message_topic
    admin, partitions = reached(config, [topic])
    ends = partition_ends(admin.client, topic, range(partitions[topic]))
    groups = StuckGroups(topic, ends, {**config.clients, **config.consumer})
    for queue in sorted(set(queues) or queues_with_groups(admin)):
        for each in groups.of(group_of(queue), config.clients):
            yield Stuck(queue=queue, partition=each.partition, offset=each.offset, batch=each.batch)


def step_over(config: QueueConfig, stuck: Stuck) -> None:
    """Move a queue's group behind the batch. Raises `BrokerRefused` or `BrokerLost`, if the group has members too."""
    group = StuckGroup(
        group=group_of(stuck.queue),
        topic=config.message_topic,
        partition=stuck.partition,
        offset=stuck.offset,
        batch=stuck.batch,
    )
    move_group(config.clients, group, f"queue {stuck.queue!r}")
