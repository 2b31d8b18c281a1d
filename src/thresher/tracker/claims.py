"""Which leader owns the marker partitions: each committed offset carries the term of a leadership as metadata.

1. A leader claims every partition when it takes over, partition 0 first. To claim a partition, it fences the previous
   owner, and commits the same offset again under its own term.
2. Partition 0 decides for all. A process that finds another term there has been replaced by a newer leader, and ends.
   So the newest claim wins, even over a leader that was suspended and resumes, and no two leaders fence each other
   endlessly. A suspended leader may still claim another partition late; the next attempt at that shard takes the
   partition back.
3. A shard checks the claim before and after it fences. Every transaction of a shard repeats the term.

A partition without a committed offset has no owner: it was added after the take-over, or no tracker ever ran.
"""

from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaException

from thresher.core.errors import Superseded
from thresher.kafka.admin import Admin
from thresher.kafka.group.offsets import GroupOffset, group_metadata, group_offsets
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.problem import BrokerLost, broker_problem
from thresher.kafka.transactional import TransactionalProducer
from thresher.queue.clients import LARGEST_BYTES
from thresher.tracker.settings import TrackerSettings

_SEPARATOR = ":"
_DECIDING_PARTITION = 0


def marker_partitions(settings: TrackerSettings) -> range:
    """Return the partitions of the marker topic. Raises `BrokerLost`, also if the topic no longer exists."""
    try:
        facts = Admin.of(settings.kafka).topic(settings.marker_topic)
    except KafkaException as error:
        raise broker_problem("the marker topic could not be looked up", error.args[0]) from error
    if facts is None:
        raise BrokerLost(f"there is no topic {settings.marker_topic} any more")
    return range(facts.partitions)


def claim_all(settings: TrackerSettings, term: str, wanted: Callable[[], bool] = lambda: True) -> bool:
    """Claim every partition, as long as `wanted` returns True. Return whether all were claimed.

    Raises `ProducerProblem` or `BrokerLost`, after which a retry claims the rest, and `Superseded`.
    """
    partitions = marker_partitions(settings)
    ends = partition_ends(Admin.of(settings.kafka).client, settings.marker_topic, partitions)
    group = group_metadata(settings.kafka, settings.name)
    for partition in partitions:
        if not wanted():
            return False
        if partition != _DECIDING_PARTITION:
            require_claim(settings, offsets_of(settings, [_DECIDING_PARTITION]), term)
        producer = producer_of(settings, settings.transactional_id(partition))
        try:
            producer.init(settings.marker_topic)
            # After `init`, no other producer can commit an offset for this partition.
            found = offsets_of(settings, [partition]).get(partition)
            offset = ends[partition].first if found is None else found.offset
            producer.begin()
            producer.send_offsets([claimed(settings, partition, offset, term, "claim")], group)
            producer.commit()
        finally:
            producer.discard()
    return True


def claimed(settings: TrackerSettings, partition: int, offset: int, term: str, name: str) -> GroupOffset:
    """Return an offset to commit, with the term and the transaction's name as metadata."""
    return GroupOffset(
        topic=settings.marker_topic, partition=partition, offset=offset, metadata=f"{term}{_SEPARATOR}{name}"
    )


def is_by(found: GroupOffset | None, term: str, name: str) -> bool:
    """Whether the transaction with this name committed this offset."""
    return found is not None and found.metadata == f"{term}{_SEPARATOR}{name}"


def require_claim(settings: TrackerSettings, found: Mapping[int, GroupOffset], term: str) -> None:
    """Raise `Superseded` if these offsets include partition 0 under another term."""
    offset = found.get(_DECIDING_PARTITION)
    holder = term if offset is None else offset.metadata.partition(_SEPARATOR)[0]
    if holder != term:
        raise Superseded(
            f"another tracker has {settings.marker_topic}: its term is {holder or 'none'}, and ours is {term}"
        )


def claimed_offset(settings: TrackerSettings, partition: int, term: str) -> GroupOffset | None:
    """Return a partition's committed offset, or None. Raises `Superseded`."""
    found = offsets_of(settings, {partition, _DECIDING_PARTITION})
    require_claim(settings, found, term)
    return found.get(partition)


def offsets_of(settings: TrackerSettings, partitions: Iterable[int]) -> dict[int, GroupOffset]:
    """Return the committed offsets by partition. A partition without a committed offset is absent."""
    return group_offsets(settings.kafka, settings.name, settings.marker_topic, partitions)


def producer_of(settings: TrackerSettings, transactional_id: str) -> TransactionalProducer:
    """Return a producer that is not initialized yet."""
    properties = {
        **settings.kafka,
        **settings.producer,
        "message.max.bytes": LARGEST_BYTES,
        "batch.size": settings.batch_bytes,
    }
    return TransactionalProducer(transactional_id, properties)
