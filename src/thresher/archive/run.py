"""A run of an archiver: what it is to do, what it has done, and the points where a crash test can cut it off."""

import enum
from dataclasses import dataclass, field

from thresher.archive.target import Opening, Target
from thresher.db.names import TableName


class ArchivePoint(enum.StrEnum):
    """Where an archiver can be cut off: a crash test is told, and nothing else happens."""

    BEGUN = "begun"
    WRITING = "writing"
    WRITTEN = "written"
    RENAMED = "renamed"
    NAMED = "named"
    REMOVING = "removing"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """What is archived, and where to: rows whose dispatched time is older than so many seconds."""

    dsn: str = field(repr=False)
    outbox: TableName
    target: Target
    older_than_seconds: float
    batch_rows: int = 10_000
    opening: Opening = Opening.MADE


@dataclass(slots=True, kw_only=True)
class Archived:
    """What was done so far. `gone` were removed by somebody else, `changed` stay in the outbox until the next time."""

    rows: int = 0
    batches: int = 0
    files: list[str] = field(default_factory=list)
    gone: int = 0
    changed: int = 0
