"""Decides where a member begins to read in the partitions assigned to it.

1. The group has an offset for the partition: there. If retention has removed that record: at the log's first
   record. That offset is committed, so that the removed records are counted once.
2. The group has no offset for the partition and never had one: at the first record. The member commits that offset,
   then writes a note of it to the compacted topic `<marker-topic>.queues`. After a crash between the two, the next
   member writes the note.
3. The group has no offset, but a note of the partition exists: an error. The offsets were deleted or have expired, and
   beginning at the first record would repeat every message.

Notes hold the topic's id, so the notes of a deleted topic do not apply to a topic recreated under the same name.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from thresher.kafka.group.offsets import GroupOffset
from thresher.kafka.partition_ends import PartitionEnds
from thresher.queue.problem import OffsetsLost


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The note of a partition: the group of this queue began at this offset."""

    queue: bytes
    topic_id: str
    partition: int
    offset: int

    @property
    def key(self) -> bytes:
        """The record's key. The compacted topic keeps the last note of each key."""
        return b"%s/%d" % (self.queue, self.partition)

    def encode(self) -> bytes:
        """Return the record's value."""
        return json.dumps(
            {"queue": self.queue.hex(), "topic_id": self.topic_id, "partition": self.partition, "offset": self.offset}
        ).encode()


def notes_of(queue: bytes, topic_id: str, contents: Iterable[bytes]) -> frozenset[int]:
    """Return the partitions of a topic that have a note for a queue. Records that are not notes are ignored."""
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
    """Where to begin in each partition, which offsets to commit, and which partitions to note after the commit."""

    # The group's offsets after `to_commit` is committed: reading begins there.
    offsets: Mapping[int, int]
    to_commit: Mapping[int, int]
    to_note: tuple[int, ...]
    # The number of offsets that retention removed before they were read.
    removed: int


def beginning(
    queue: bytes, committed: Mapping[int, GroupOffset], ends: Mapping[int, PartitionEnds], noted: frozenset[int]
) -> Beginning:
    """Decide where to begin in the partitions of `ends`. `noted` are the partitions with a note.

    Raises `OffsetsLost`.
    """
    lost = sorted(partition for partition in ends if partition not in committed and partition in noted)
    if lost:
        raise OffsetsLost(
            f"the consumer group of queue {queue!r} had offsets in the partitions {', '.join(map(str, lost))} and has "
            "none now: they were deleted or have expired (offsets.retention.minutes). Set them with "
            "kafka-consumer-groups --reset-offsets: --to-latest skips the messages that wait, --to-earliest repeats "
            "the messages that were processed"
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
