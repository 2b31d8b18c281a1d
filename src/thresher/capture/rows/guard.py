"""Decides which of two records of a key is the later one. Pure.

The guard of a row is partition, offset and timestamp of the record that it was written from.
1. Within a partition, the higher offset is later.
2. A key is in two partitions if partitions were added to its topic. Between them, the later timestamp decides; if both
   are equal, the higher partition: when partitions are doubled, a key moves to a higher one, if it moves.
3. A row keeps the latest timestamp among the records of its partition. So if a producer's clock goes back, an older
   record of another partition still does not win.

`capture_upsert.sql` has the same rules for a row and a record.
"""

from collections.abc import Iterable
from typing import NamedTuple


class GuardColumns(NamedTuple):
    """The names of the columns that hold a row's guard."""

    partition: str = "thresher_partition"
    offset: str = "thresher_offset"
    timestamp: str = "thresher_timestamp"


class Guard(NamedTuple):
    """Identifies the record that a row was written from."""

    partition: int
    offset: int
    timestamp_ms: int

    def after(self, other: "Guard") -> bool:
        """Whether this record is later than the other."""
        if self.partition == other.partition:
            return self.offset > other.offset
        return (self.timestamp_ms, self.partition) > (other.timestamp_ms, other.partition)

    def following(self, other: "Guard") -> "Guard":
        """Return the guard of a row that had the guard `other` and is now written from this record."""
        if self.partition != other.partition or self.timestamp_ms >= other.timestamp_ms:
            return self
        return self._replace(timestamp_ms=other.timestamp_ms)


# A tuple rather than a dataclass, for speed: one is made for each record.
class Change(NamedTuple):
    """A record's change of the row with its key: the columns' values as text, or a delete if `values` is None."""

    key: tuple[bytes, ...]
    values: tuple[bytes | None, ...] | None
    guard: Guard


def rounds(changes: Iterable[Change]) -> list[list[Change]]:
    """Return the newest change of each key and partition, in rounds without repeated keys: one statement per round.

    There is one round, unless a key is in several partitions. Between these, the guard of the row decides, in the
    database: the row may have a later timestamp than all of them.
    """
    newest: dict[tuple[bytes, ...], Change] = {}
    others: dict[tuple[bytes, ...], dict[int, Change]] = {}
    for change in changes:
        before = newest.get(change.key)
        if before is None or before.guard.partition == change.guard.partition:
            newest[change.key] = change if before is None else _later(before, change)
            continue
        more = others.setdefault(change.key, {})
        partition = change.guard.partition
        more[partition] = _later(more[partition], change) if partition in more else change
    found = [list(newest.values())]
    for more in others.values():
        for place, change in enumerate(more.values(), 1):
            if len(found) == place:
                found.append([])
            found[place].append(change)
    return found


def _later(before: Change, change: Change) -> Change:
    if not change.guard.after(before.guard):
        return before
    return change._replace(guard=change.guard.following(before.guard))
