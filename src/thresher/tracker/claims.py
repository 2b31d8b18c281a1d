"""Who has the marker partitions: the term of a leadership, beside the committed offset of each.

1. A leader claims every partition when it takes over: it fences whoever had it, and commits the offset that is there
   anew, under its term.
2. A shard looks for its term before it fences, and after: where another term is, a newer leader has the partition, and
   the shard ends. So the newest claim wins, whoever was stopped and goes on, and no two fence each other for ever.
3. Every transaction of a shard carries the term on.

A partition without a committed offset is nobody's: it was added after the take-over, or no tracker ever ran.
"""

from collections.abc import Mapping

from thresher.core.errors import Superseded
from thresher.kafka.admin import Admin
from thresher.kafka.group_offsets import GroupOffset, group_metadata, group_offsets
from thresher.kafka.partition_ends import partition_ends
from thresher.kafka.problem import BrokerLost
from thresher.kafka.transactional import TransactionalProducer
from thresher.queue.clients import LARGEST_BYTES
from thresher.tracker.settings import TrackerSettings

_SEPARATOR = ":"


def claim_all(settings: TrackerSettings, term: str) -> None:
    """Claim every partition that there is. Raises `ProducerProblem` or `BrokerLost`: a retry claims the rest."""
    admin = Admin.of(settings.kafka)
    facts = admin.topic(settings.marker_topic)
    if facts is None:
        raise BrokerLost(f"there is no topic {settings.marker_topic} any more")
    partitions = range(facts.partitions)
    ends = partition_ends(admin.client, settings.marker_topic, partitions)
    group = group_metadata(settings.kafka, settings.name)
    for partition in partitions:
        producer = producer_of(settings, settings.transactional_id(partition))
        try:
            producer.init(settings.marker_topic)
            # After that nobody else can commit another one.
            found = offsets_of(settings, [partition]).get(partition)
            offset = ends[partition].first if found is None else found.offset
            producer.begin()
            producer.send_offsets([claimed(settings, partition, offset, term, "claim")], group)
            producer.commit()
        finally:
            producer.discard()


def claimed(settings: TrackerSettings, partition: int, offset: int, term: str, name: str) -> GroupOffset:
    """Return an offset to commit, by the transaction of that name under the term."""
    return GroupOffset(
        topic=settings.marker_topic, partition=partition, offset=offset, metadata=f"{term}{_SEPARATOR}{name}"
    )


def is_by(found: GroupOffset | None, term: str, name: str) -> bool:
    """Whether an offset was committed by the transaction of that name."""
    return found is not None and found.metadata == f"{term}{_SEPARATOR}{name}"


def require_claim(settings: TrackerSettings, found: Mapping[int, GroupOffset], term: str) -> None:
    """Raise `Superseded` where one of these offsets is under another term."""
    for partition, offset in found.items():
        holder = offset.metadata.partition(_SEPARATOR)[0]
        if holder != term:
            where = f"partition {partition} of {settings.marker_topic}"
            raise Superseded(f"another tracker has {where}: its term is {holder or 'none'}, and ours is {term}")


def offsets_of(settings: TrackerSettings, partitions: range | list[int]) -> dict[int, GroupOffset]:
    """Return the committed offsets of partitions; one without is absent."""
    return group_offsets(settings.kafka, settings.name, settings.marker_topic, partitions)


def producer_of(settings: TrackerSettings, transactional_id: str) -> TransactionalProducer:
    """Return a producer before its `init`."""
    properties = {
        **settings.kafka,
        **settings.producer,
        "message.max.bytes": LARGEST_BYTES,
        "batch.size": settings.batch_bytes,
    }
    return TransactionalProducer(transactional_id, properties)
