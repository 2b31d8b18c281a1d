"""Where a member begins in the partitions that it was given.

1. A partition whose offset the group has: there. If retention has removed that place: at the log's first
   record, which is committed, so that the offsets between are counted once.
2. A partition without an offset, for the first time: at its first record. That offset is committed, and only then noted
   in the compacted topic `<marker-topic>.queues`. A crash between the two is mended by the next member.
3. A partition that was noted and has no offset: an error. The group's offsets were lost or have expired, and beginning
   at the first record would repeat every message.

A topic that was deleted and made again has another id: what was noted of the old one says nothing.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thresher.kafka.group_offsets import GroupOffset
from thresher.kafka.partition_ends import PartitionEnds
from thresher.queue.problem import OffsetsLost


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is noted of a partition: the group of this queue began at this offset."""

    queue: bytes
    topic_id: str
    partition: int
    offset: int

    @property
    def key(self) -> bytes:
        """The record's key, under which the topic keeps the last note."""
        return b"%s/%d" % (self.queue, self.partition)

    def encode(self) -> bytes:
        """Return the record's value."""
        return json.dumps(
            {"queue": self.queue.hex(), "topic_id": self.topic_id, "partition": self.partition, "offset": self.offset}
        ).encode()


def notes_of(queue: bytes, topic_id: str, contents: Iterable[bytes]) -> frozenset[int]:
    """Return the partitions of a topic that are noted for a queue. What is no note is left out."""
    found = set()
    for content in contents:
        try:
            note = json.loads(content)
            if note["queue"] == queue.hex() and note["topic_id"] == topic_id:
                found.add(int(note["partition"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            continue
    return frozenset(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where to begin in each partition, what to commit, and what to note after that."""

    # The group's offsets, once `to_commit` is committed: there it begins.
    offsets: Mapping[int, int]
    to_commit: Mapping[int, int]
    to_note: tuple[int, ...]
    # Offsets that retention has removed before they were read.
    removed: int


def beginning(
    queue: bytes, committed: Mapping[int, GroupOffset], ends: Mapping[int, PartitionEnds], noted: frozenset[int]
) -> Beginning:
    """Decide where to begin in the partitions of `ends`. Raises `OffsetsLost`."""
    lost = sorted(partition for partition in ends if partition not in committed and partition in noted)
    if lost:
        raise OffsetsLost(
            f"the consumer group of queue {queue!r} had offsets in the partitions {', '.join(map(str, lost))} and has "
            "none: they were deleted or have expired (offsets.retention.minutes). Set them with kafka-consumer-groups "
            "--reset-offsets: --to-latest skips what was sent meanwhile, --to-earliest repeats what was processed"
        )
    found = {partition: committed[partition].offset for partition in ends if partition in committed}
    behind = {partition: end.first - found[partition] for partition, end in ends.items() if partition in found}
    to_commit = {partition: end.first for partition, end in ends.items() if behind.get(partition, 1) > 0}
    return Beginning(
        offsets=found | to_commit,
        to_commit=to_commit,
        to_note=tuple(sorted(set(ends) - noted)),
        removed=sum(each for each in behind.values() if each > 0),
    )
