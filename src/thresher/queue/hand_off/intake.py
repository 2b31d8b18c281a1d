"""Records that were polled and not handed off yet, and how far a group's offsets may pass. Looks at no clock.

1. Records of other queues are left out, and offsets pass them. A partition's offset never passes a record of ours that
   is not part of a batch.
2. Offsets pass records of other queues with every batch. Without one they pass once there are `most_skipped`, and
   whenever the caller says so.
3. A partition that was revoked is forgotten, with all that was polled of it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from thresher.queue.wire.record import Record


@dataclass(frozen=True, slots=True)
class Span:
    """The part of a partition that a batch passes: from the group's offset, up to the next one."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records to hand off together, and the offsets that pass them. It may pass records of other queues alone."""

    records: tuple[Record, ...]
    spans: Mapping[int, Span]
    # The record that goes to the dead letters instead, and why: its Start was refused. Then it is the only record.
    dead_reason: str | None = None

    def halves(self) -> tuple["Batch", "Batch"]:
        """Return the batch in two parts, to be handed off in this order. There must be two records at least."""
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

    def dead(self, reason: str) -> "Batch":
        """Return the batch with its record as a dead letter."""
        return replace(self, dead_reason=reason)


@dataclass(slots=True)
class _Partition:
    # The group's offset; the offset behind everything that was polled; and the offsets of our records in between.
    begin: int
    upto: int
    ours: deque[int] = field(default_factory=deque)


class Intake:
    """The polled records of one member. For one thread."""

    def __init__(self, *, most_skipped: int, most_bytes: int) -> None:
        self._most_skipped, self._most_bytes = most_skipped, most_bytes
        self._partitions: dict[int, _Partition] = {}
        self._waiting: deque[Record] = deque()
        # Records of other queues since offsets last passed some.
        self.skipped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that were given."""
        return frozenset(self._partitions)

    def give(self, partition: int, offset: int) -> None:
        """Take in a partition, and the group's offset in it: there reading begins."""
        self._partitions[partition] = _Partition(begin=offset, upto=offset)

    def position(self, partition: int) -> int:
        """Return the offset behind everything that was polled."""
        return self._partitions[partition].upto

    def move(self, partition: int, position: int) -> None:
        """Take in that records before this position are gone from the log."""
        self._partitions[partition].upto = position

    def forget(self, partitions: Iterable[int] | None = None) -> None:
        """Forget partitions, or all of them, with what was polled of them."""
        gone = set(self._partitions if partitions is None else partitions)
        for partition in gone:
            self._partitions.pop(partition, None)
        self._waiting = deque(record for record in self._waiting if record.message_id.partition not in gone)
        if not self._partitions:
            self.skipped = 0

    def skip(self, partition: int, offset: int) -> None:
        """Take in a record of another queue."""
        if (given := self._partitions.get(partition)) is not None and offset >= given.upto:
            given.upto = offset + 1
            self.skipped += 1

    def add(self, record: Record) -> None:
        """Take in a record of ours. One of a partition that is not given, or that came before, is left out."""
        partition, offset = record.message_id
        if (given := self._partitions.get(partition)) is not None and offset >= given.upto:
            given.upto = offset + 1
            given.ours.append(offset)
            self._waiting.append(record)

    def cut(self, room: int, *, pass_skipped: bool = False) -> Batch | None:
        """Return the next batch, with `room` records at most; None if there is nothing to hand off.

        `pass_skipped` makes a batch of other queues' records alone, however few they are.
        """
        records: list[Record] = []
        size = 0
        while self._waiting and len(records) < room:
            size += self._waiting[0].size
            if records and size > self._most_bytes:
                break
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
            # All that was skipped lies behind records that wait.
            return None
        self.skipped = 0
        return Batch(records=tuple(records), spans=spans)

    def passed(self, batch: Batch) -> None:
        """Take in that the group's offsets have passed a batch."""
        for number, span in batch.spans.items():
            if (partition := self._partitions.get(number)) is not None:
                partition.begin = max(partition.begin, span.end)
