"""Moves the groups of queues over batches of the message topic that no client can decompress.

A group stands still before such a batch, because it may hold messages of its queue. Stepping over it loses these for
the queue: an operator decides that. A group that has members is not changed: they would commit their own offsets. Nor
is one that has moved since it was looked at: it would start messages again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from thresher.kafka.group_offsets import group_offsets, no_member
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.problem import BrokerRefused, broker_problem
from thresher.kafka.unreadable_batch import Unreadable, unreadable_at
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
    properties = {**config.clients, **config.consumer}
    # Many groups stand at the same offset.
    known: dict[tuple[int, int], Unreadable | None] = {}
    for queue in sorted(set(queues) or queues_with_groups(admin)):
        for partition, found in group_offsets(config.clients, group_of(queue), topic, ends).items():
            place = (partition, found.offset)
            if found.offset >= ends[partition].stable:
                continue
            if place not in known:
                known[place] = unreadable_at(topic, partition, found.offset, properties)
            if (batch := known[place]) is not None:
                yield Stuck(queue=queue, partition=partition, offset=found.offset, batch=batch)


def step_over(config: QueueConfig, stuck: Stuck) -> None:
    """Move a queue's group behind the batch. Raises `BrokerRefused` or `BrokerLost`, if the group has members too."""
    group = group_of(stuck.queue)
    now = group_offsets(config.clients, group, config.message_topic, [stuck.partition]).get(stuck.partition)
    if now is None or now.offset != stuck.offset:
        raise BrokerRefused(f"queue {stuck.queue!r} does not stand before the batch any more, and was not moved")
    place = TopicPartition(config.message_topic, stuck.partition, stuck.batch.after)
    refusal: KafkaError | None = None
    with no_member(config.clients, group) as client:
        try:
            answers = client.commit(offsets=[place], asynchronous=False) or ()
            refusal = next((each.error for each in answers if each.error is not None), None)
        except KafkaException as error:
            refusal = error.args[0]
    if refusal is not None:
        raise broker_problem(f"the group of queue {stuck.queue!r} was not moved: stop its consumers first", refusal)
