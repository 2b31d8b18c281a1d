"""Whether what was read may be applied: decided by the offset that the database has stored. Pure.

Offsets have gaps: control records, aborted transactions, compaction. So a part of a batch says from where it was read,
and what it says is complete: every committed record from `start` up to `end` is in it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from thresher.capture.record import CapturedRecord, Place


class Part(NamedTuple):
    """What was read of one partition: all committed records from `start` up to `end`."""

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
        """Return this part with the one that was read behind it."""
        return self._replace(end=after.end, records=[*self.records, *after.records])


class Due(NamedTuple):
    """These records are to be applied, and the stored offset moves to `end`."""

    records: Sequence[CapturedRecord]
    end: int


class Covered(NamedTuple):
    """All of it was applied before, by another one perhaps. Reading goes on at the stored offset."""

    stored: int


class Beyond(NamedTuple):
    """It was read from beyond the stored offset: nothing is applied, and reading starts over there."""

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
