"""Decides by the stored offset whether a part of a batch may be applied. Pure.

Offsets have gaps, from control records, aborted transactions and compaction. So a part holds the offsets between which
it was read: it has every committed record from `start` up to `end`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from thresher.capture.record import CapturedRecord, Place


class Part(NamedTuple):
    """The records that were read from one partition: all committed ones from `start` up to, but without, `end`."""

    topic: str
    partition: int
    start: int
    end: int
    records: Sequence[CapturedRecord] = ()

    @property
    def place(self) -> Place:
        """The topic and the partition."""
        return self.topic, self.partition

    def joined(self, after: "Part") -> "Part":
        """Return this part together with the one that was read directly after it."""
        return self._replace(end=after.end, records=[*self.records, *after.records])


class Due(NamedTuple):
    """Apply these records, and move the stored offset to `end`."""

    records: Sequence[CapturedRecord]
    end: int


class Covered(NamedTuple):
    """The whole part was applied before, perhaps by another process. Reading continues at the stored offset."""

    stored: int


class Beyond(NamedTuple):
    """The part begins beyond the stored offset: it is not applied, and reading goes back to the stored offset."""

    stored: int


Verdict = Due | Covered | Beyond


def judge(part: Part, stored: int) -> Verdict:
    """Decide about one part, while the stored offset is locked."""
    if part.start > stored:
        return Beyond(stored)
    if part.end <= stored:
        return Covered(stored)
    due = part.records if part.start == stored else [each for each in part.records if each.offset >= stored]
    return Due(due, part.end)
