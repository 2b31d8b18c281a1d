"""Decides where each partition is read from: at its stored offset. If that is not in the log, an operator must act."""

import time
from collections.abc import Collection, Iterable, Mapping

from confluent_kafka import KafkaException

from thresher.capture.problem import topic_changed
from thresher.capture.record import Place
from thresher.capture.settings import CaptureSettings
from thresher.capture.store.offsets import Stored, StoredOffset, StoredOffsets
from thresher.kafka.admin import Admin, TopicFacts
from thresher.kafka.partition_ends import PartitionEnds, partition_ends
from thresher.kafka.partition_watch import PositionLost
from thresher.kafka.problem import broker_problem
from thresher.kafka.topic_advice import NO_UNCLEAN_LEADER, TopicUse

# A broker that was cut off may report old end offsets. So a partition that ends before its stored offset is asked for
# again, for this long and at this interval.
_OLD_ENDS_SECONDS, _ASK_AGAIN_SECONDS = 10.0, 0.5


def facts_of(admin: Admin, topics: Collection[str]) -> dict[str, TopicFacts]:
    """Return id and partitions of each topic. Raises `BrokerLost`, or `BrokerRefused` if one is missing or denied."""
    try:
        found = admin.facts(topics)
    except KafkaException as error:
        raise broker_problem("the captured topics could not be described", error.args[0]) from error
    facts: dict[str, TopicFacts] = {}
    for topic, fact in found.items():
        if not isinstance(fact, TopicFacts):
            raise broker_problem(f"the topic {topic} could not be described", fact)
        facts[topic] = fact
    return facts


def captured_uses(settings: CaptureSettings) -> list[TopicUse]:
    """Return what a capture needs of its topics. Rows need only the last record of a key, a handler may need each."""
    return [
        TopicUse(
            name=mapping.topic,
            compressed_by_others=True,
            read_later=True,
            each_record=mapping.handler is not None,
            exact=NO_UNCLEAN_LEADER,
        )
        for mapping in settings.mappings
    ]


def begin_topics(admin: Admin, offsets: StoredOffsets, facts: Mapping[str, TopicFacts]) -> None:
    """Store the first offsets of topics that were never captured: all partitions at once, before any shard reads.

    From then on, a partition without a stored offset was added to its topic later.
    """
    known = {topic for topic, _ in offsets.read()}
    for topic, fact in facts.items():
        if topic not in known:
            for partition, ends in partition_ends(admin.client, topic, range(fact.partitions)).items():
                offsets.begin((topic, partition), StoredOffset(fact.topic_id, ends.first))


def starts_of(
    admin: Admin, offsets: StoredOffsets, topic: str, topic_id: str, partitions: Iterable[int]
) -> dict[Place, int]:
    """Return the offset to begin at, and store it for partitions without a stored offset. Raises `PositionLost`."""
    wanted = list(partitions)
    stored = offsets.read()
    # Also partitions of other shards: since offsets are stored in ascending order of partitions, a missing one below a
    # stored one was removed.
    added = [each for each in range(max(wanted, default=-1) + 1) if (topic, each) not in stored]
    ends = current_ends(admin, topic, {*wanted, *added}, stored)
    if added:
        begins = {(topic, each): first_offset(topic, each, stored, ends[each]) for each in added}
        offsets.add({place: StoredOffset(topic_id, first) for place, first in begins.items()})
        # Another shard may have stored an offset at the same time.
        stored = offsets.read()
    for partition in wanted:
        require_in_log((topic, partition), stored[topic, partition], topic_id, ends[partition])
    return {(topic, partition): stored[topic, partition].next_offset for partition in wanted}


def first_offset(topic: str, partition: int, stored: Stored, ends: PartitionEnds) -> int:
    """Return where a partition without a stored offset begins. Raises `PositionLost`.

    A new capture begins at the first record that the topic still has: see `begin_topics`. A partition that was added to
    a captured topic must begin at 0. If a higher partition has a stored offset, this one's was removed.
    """
    known = [each for name, each in stored if name == topic]
    if known and partition < max(known):
        raise PositionLost(
            f"the stored offset of partition {partition} of {topic} was removed: run 'thresher capture adopt' to "
            "capture the partition again from its first record"
        )
    if known and ends.first > 0:
        raise PositionLost(
            f"partition {partition} of {topic} was added, and {ends.first} of its offsets were removed before they "
            "were captured, by its retention or by an operator: run 'thresher capture adopt' to go on without them"
        )
    return ends.first


def require_in_log(place: Place, stored: StoredOffset, topic_id: str, ends: PartitionEnds) -> None:
    """Raise `PositionLost` if reading cannot continue at a stored offset."""
    topic, partition = place
    if stored.topic_id != topic_id:
        raise PositionLost(topic_changed(topic))
    if stored.next_offset < ends.first:
        raise PositionLost(
            f"partition {partition} of {topic} begins at {ends.first}, and was captured up to {stored.next_offset}: "
            f"{ends.first - stored.next_offset} offsets were removed before they were captured, by its retention or by "
            "an operator: run 'thresher capture adopt' to go on without them"
        )
    if stored.next_offset > ends.high:
        raise PositionLost(
            f"partition {partition} of {topic} ends at {ends.high}, and was captured up to {stored.next_offset}: the "
            "broker has lost records: run 'thresher capture adopt' to go on at its end"
        )


def current_ends(admin: Admin, topic: str, partitions: Collection[int], stored: Stored) -> Mapping[int, PartitionEnds]:
    """Return the first and end offsets. If an end is before the stored offset, ask again for a while."""
    deadline = time.monotonic() + _OLD_ENDS_SECONDS
    while True:
        ends = partition_ends(admin.client, topic, partitions) if partitions else {}
        found = {partition: stored.get((topic, partition)) for partition in partitions}
        behind = any(each is not None and each.next_offset > ends[partition].high for partition, each in found.items())
        if not behind or time.monotonic() > deadline:
            return ends
        time.sleep(_ASK_AGAIN_SECONDS)
