"""Where each partition is read from: at its stored offset, if the log still has that; else somebody has to act."""

import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import KafkaException

from thresher.capture.problem import topic_changed
from thresher.capture.record import Place
from thresher.capture.store.offsets import Stored, StoredOffset, StoredOffsets
from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.partition_ends import PartitionEnds, partition_ends
from thresher.kafka.partition_watch import PositionLost
from thresher.kafka.problem import broker_problem

# How long a partition that ends before its stored offset is asked for again: a broker that was cut off shows old ends.
_OLD_ENDS_SECONDS, _ASK_AGAIN_SECONDS = 10.0, 0.5


def facts_of(admin: Admin, topics: Collection[str]) -> dict[str, TopicFacts]:
    """Return the facts of the topics. Raises `BrokerLost`, or `BrokerRefused` where one is missing or forbidden."""
    try:
        found = admin.facts(topics)
    except KafkaException as error:
        raise broker_problem("the captured topics could not be looked at", error.args[0]) from error
    facts: dict[str, TopicFacts] = {}
    for topic, fact in found.items():
        if not isinstance(fact, TopicFacts):
            raise broker_problem(f"the topic {topic} could not be looked at", fact)
        facts[topic] = fact
    return facts


def begin_topics(admin: Admin, offsets: StoredOffsets, facts: Mapping[str, TopicFacts]) -> None:
    """Store where the partitions of topics begin that were never captured, all at once, before any shard reads.

    From then on a partition without a stored offset is one that was added.
    """
    known = {topic for topic, _ in offsets.read()}
    for topic, fact in facts.items():
        if topic not in known:
            for partition, ends in partition_ends(admin.client, topic, range(fact.partitions)).items():
                offsets.begin((topic, partition), StoredOffset(fact.topic_id, ends.first))


def starts_of(
    admin: Admin, offsets: StoredOffsets, topic: str, topic_id: str, partitions: Iterable[int]
) -> dict[Place, int]:
    """Return where to begin, and store it for partitions that have no stored offset yet. Raises `PositionLost`."""
    wanted = list(partitions)
    stored = offsets.read()
    # Those of other shards too: they are added in their order, so that a missing one below them was removed.
    added = [each for each in range(max(wanted, default=-1) + 1) if (topic, each) not in stored]
    ends = current_ends(admin, topic, {*wanted, *added}, stored)
    if added:
        begins = {(topic, each): first_offset(topic, each, stored, ends[each]) for each in added}
        offsets.add({place: StoredOffset(topic_id, first) for place, first in begins.items()})
        # Another one may have stored it at the same time.
        stored = offsets.read()
    for partition in wanted:
        require_in_log((topic, partition), stored[topic, partition], topic_id, ends[partition])
    return {(topic, partition): stored[topic, partition].next_offset for partition in wanted}


def first_offset(topic: str, partition: int, stored: Stored, ends: PartitionEnds) -> int:
    """Return where a partition without a stored offset begins. Raises `PositionLost`.

    A new capture begins with what there is: see `begin_topics`. A partition that was added to a captured topic began at
    0. One below others that are stored was not added: somebody has removed its offset.
    """
    known = [each for name, each in stored if name == topic]
    if known and partition < max(known):
        raise PositionLost(
            f"the stored offset of partition {partition} of {topic} is gone: somebody removed it; 'thresher capture "
            "adopt' captures the partition again from its first record"
        )
    if known and ends.first > 0:
        raise PositionLost(
            f"partition {partition} of {topic} was added, and {ends.first} of its records were removed before they "
            "were captured, by its retention or by somebody's hand; 'thresher capture adopt' goes on without them"
        )
    return ends.first


def require_in_log(place: Place, stored: StoredOffset, topic_id: str, ends: PartitionEnds) -> None:
    """Raise `PositionLost` where reading cannot go on at a stored offset."""
    topic, partition = place
    if stored.topic_id != topic_id:
        raise PositionLost(topic_changed(topic))
    if stored.next_offset < ends.first:
        raise PositionLost(
            f"partition {partition} of {topic} begins at {ends.first}, and was captured up to {stored.next_offset}: "
            f"{ends.first - stored.next_offset} offsets were removed before they were captured, by its retention or by "
            "somebody's hand; 'thresher capture adopt' goes on without them"
        )
    if stored.next_offset > ends.high:
        raise PositionLost(
            f"partition {partition} of {topic} ends at {ends.high}, and was captured up to {stored.next_offset}: the "
            "broker has lost records; 'thresher capture adopt' goes on at its end"
        )


def current_ends(admin: Admin, topic: str, partitions: Collection[int], stored: Stored) -> Mapping[int, PartitionEnds]:
    """Return the ends of partitions. A broker that was cut off may show old ones for a while."""
    deadline = time.monotonic() + _OLD_ENDS_SECONDS
    while True:
        ends = partition_ends(admin.client, topic, partitions) if partitions else {}
        found = {partition: stored.get((topic, partition)) for partition in partitions}
        behind = any(each is not None and each.next_offset > ends[partition].high for partition, each in found.items())
        if not behind or time.monotonic() > deadline:
            return ends
        time.sleep(_ASK_AGAIN_SECONDS)
