"""Moves a consumer group with an inbox over batches of its topics that no client can decompress.

See `kafka/group/stepping_over`. The inbox does not know its consumers' group and properties: the operator names them.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaException

from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.group.stepping_over import StuckGroup, StuckGroups, move_group
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.problem import broker_problem

# The names of the client's setting.
_FROM_FIRST = frozenset({"earliest", "smallest", "beginning"})


def stuck_partitions(properties: Mapping[str, Any], group: str, topics: Collection[str]) -> Iterator[StuckGroup]:
    """Yield where a group stands before an unreadable batch. `properties` are those of its consumers.

    Raises `BrokerLost` or `BrokerRefused`.
    """
    from_first = properties.get("auto.offset.reset") in _FROM_FIRST
    admin = Admin.of({"log_level": 2, **properties})
    try:
        admin.require_answer()
        found = admin.facts(topics)
    except KafkaException as error:
        raise broker_problem("the topics cannot be described", error.args[0]) from error
    for topic, fact in found.items():
        if not isinstance(fact, TopicFacts):
            raise broker_problem(f"the topic {topic} cannot be described", fact)
        ends = partition_ends(admin.client, topic, range(fact.partitions))
        yield from StuckGroups(topic, ends, properties).of(group, properties, from_first=from_first)


def step_over(properties: Mapping[str, Any], stuck: StuckGroup) -> None:
    """Move the group behind the batch. Raises `BrokerRefused` or `BrokerLost`, if the group has members too."""
    move_group(properties, stuck, stuck.group)
