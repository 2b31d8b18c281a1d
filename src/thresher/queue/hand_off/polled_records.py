"""The records that were polled and not handed off yet, and how far the group's offsets may move. Reads no clock.

1. Records of other queues are skipped, and offsets move past them. A partition's offset never moves past a record of
   this queue that is not part of a batch.
2. Every batch moves the offsets past skipped records too. Without a batch, offsets move once `most_skipped` records are
   skipped, or when the caller asks for it.
3. When a partition is revoked, its polled records are discarded.
4. A message that is larger than any that our producers send is a batch of its own, as a dead letter: another program
   sent it, perhaps in few compressed bytes, and a Start of this size might be refused, or fill the tracker's memory.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from thresher.queue.wire.dead_letter import first_part_bytes
from thresher.queue.wire.record import Record


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets that a batch covers in a partition: from the group's offset up to its next offset, exclusive."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records to hand off together, and the offsets to commit. A batch may cover only records of other queues."""

    records: tuple[Record, ...]
    spans: Mapping[int, Span]
    # The reason if the batch's only record becomes a dead letter: it is too large, or the broker refused its Start.
    dead_reason: str | None = None
    # The size of the parts that the letter is written in; None: it is one record.
    part_bytes: int | None = None

    def halves(self) -> tuple["Batch", "Batch"]:
        """Split the batch into two parts, to be handed off in this order. It must have at least two records."""
        middle = len(self.records) // 2
        first, second = self.records[:middle], self.records[middle:]
        early, late = {}, {}
        for partition, span in self.spans.items():
            # The first part ends before the second part's first record.
            begins = [record.message_id.offset for record in second if record.message_id.partition == partition]
            cut = min(begins, default=span.end)
            if any(record.message_id.partition == partition for record in first):
                early[partition] = Span(span.begin, cut)
                if begins:
                    late[partition] = Span(cut, span.end)
            else:
                late[partition] = span
        return Batch(records=first, spans=early), Batch(records=second, spans=late)

    def dead(self, reason: str, part_bytes: int | None = None) -> "Batch":
        """Return the batch with its only record as a dead letter, in parts of this size."""
        return replace(self, dead_reason=reason, part_bytes=part_bytes)


@dataclass(slots=True)
class _Partition:
    # The group's offset; the offset after the last polled record; and the offsets of this queue's records in between.
    begin: int
    upto: int
    ours: deque[int] = field(default_factory=deque)


class PolledRecords:
    """The polled records of one member. For one thread."""

    def __init__(self, *, most_skipped: int, most_bytes: int, largest: int = 2**62) -> None:
        """`most_bytes` is the size of a batch, `largest` that of a message that is started."""
        self._most_skipped, self._most_bytes, self._largest = most_skipped, most_bytes, largest
        self._partitions: dict[int, _Partition] = {}
        self._waiting: deque[Record] = deque()
        # Records of other queues since the last batch.
        self.skipped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def partitions(self) -> frozenset[int]:
        """The assigned partitions."""
        return frozenset(self._partitions)

    def give(self, partition: int, offset: int) -> None:
        """Add an assigned partition and the group's offset in it, where reading begins."""
        self._partitions[partition] = _Partition(begin=offset, upto=offset)

    def position(self, partition: int) -> int:
        """Return the offset after the last polled record."""
        return self._partitions[partition].upto

    def move(self, partition: int, position: int) -> None:
        """Move the position: the records before it are gone from the log."""
        self._partitions[partition].upto = position

    def forget(self, partitions: Iterable[int] | None = None) -> None:
        """Remove these partitions, or all, and discard their polled records."""
        gone = set(self._partitions if partitions is None else partitions)
        for partition in gone:
            self._partitions.pop(partition, None)
        self._waiting = deque(record for record in self._waiting if record.message_id.partition not in gone)
        if not self._partitions:
            self.skipped = 0

    def skip(self, partition: int, offset: int) -> None:
        """Register a record of another queue."""
        if (given := self._partitions.get(partition)) is not None and offset >= given.upto:
            given.upto = offset + 1
            self.skipped += 1

    def add(self, record: Record) -> None:
        """Add a record of this queue.

        A record of a partition that is not assigned, or from before the position, is ignored.
        """
        partition, offset = record.message_id
        if (given := self._partitions.get(partition)) is not None and offset >= given.upto:
            given.upto = offset + 1
            given.ours.append(offset)
            self._waiting.append(record)

    def cut(self, room: int, *, pass_skipped: bool = False) -> Batch | None:
        """Return the next batch, with at most `room` records; None if there is nothing to hand off.

        With `pass_skipped`, any number of skipped records makes a batch.
        """
        records: list[Record] = []
        size, reason = 0, None
        while self._waiting and len(records) < room and reason is None:
            added = self._waiting[0].size
            size += added
            if records and (size > self._most_bytes or added > self._largest):
                break
            if added > self._largest:
                reason = f"it has {added:,} bytes, and max-message-bytes is {self._largest:,}"
            record = self._waiting.popleft()
            self._partitions[record.message_id.partition].ours.popleft()
            records.append(record)
        if not records and not (self.skipped and (pass_skipped or self.skipped >= self._most_skipped)):
            return None
        spans = {}
        for number, partition in self._partitions.items():
            end = partition.ours[0] if partition.ours else partition.upto
            if end > partition.begin:
                spans[number] = Span(partition.begin, end)
        if not spans:
            # All skipped records lie after records that still wait.
            return None
        self.skipped = 0
        batch = Batch(records=tuple(records), spans=spans)
        return batch if reason is None else batch.dead(reason, first_part_bytes(records[0], self._largest))

    def passed(self, batch: Batch) -> None:
        """Register that the group's offsets have moved past a batch."""
        for number, span in batch.spans.items():
            if (partition := self._partitions.get(number)) is not None:
                partition.begin = max(partition.begin, span.end)
