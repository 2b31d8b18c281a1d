"""Which of two records of a key is the later one. Pure.

1. In one partition the higher offset is later.
2. Between two partitions, where the number of partitions was raised, the later timestamp decides, and of equal ones the
   higher partition: a key whose topic got twice the partitions moves to a higher one, if it moves.
3. A row keeps the latest timestamp that its partition had for it: a producer's clock that goes back within a partition
   does not let an older record of another partition win.

`capture_upsert.sql` decides the same about a row and a record.
"""

from collections.abc import Iterable
from typing import NamedTuple


class GuardColumns(NamedTuple):
    """The names of the columns that hold a row's guard."""

    partition: str = "thresher_partition"
    offset: str = "thresher_offset"
    timestamp: str = "thresher_timestamp"


class Guard(NamedTuple):
    """The record that a row was written from."""

    partition: int
    offset: int
    timestamp_ms: int

    def after(self, other: "Guard") -> bool:
        """Whether this one is later."""
        if self.partition == other.partition:
            return self.offset > other.offset
        return (self.timestamp_ms, self.partition) > (other.timestamp_ms, other.partition)

    def following(self, other: "Guard") -> "Guard":
        """Return the guard of a row that had the other one and is written from this one."""
        if self.partition != other.partition or self.timestamp_ms >= other.timestamp_ms:
            return self
        return self._replace(timestamp_ms=other.timestamp_ms)


# A tuple and no dataclass: one is made for each record.
class Change(NamedTuple):
    """What a record does to the row of its key: the values of its columns, as text; or, with none, a delete."""

    key: tuple[bytes, ...]
    values: tuple[bytes | None, ...] | None
    guard: Guard


def rounds(changes: Iterable[Change]) -> list[list[Change]]:
    """Return the newest change of each key and partition, in rounds in which no key is twice: one statement each.

    There is one round, unless a key is in several partitions. Which of these is the latest the row decides: it may have
    a later timestamp than any of them.
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
