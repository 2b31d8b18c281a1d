"""A run of an archiver: its job, its result, and the points where a crash test can stop it."""

import enum
from dataclasses import dataclass, field

from thresher.archive.target import Opening, Target
from thresher.core.secrets import SecretText
from thresher.db.names import TableName
from thresher.db.postgres.dsn import kept_dsn


class ArchivePoint(enum.StrEnum):
    """The crash points of an archiver, for tests."""

    BEGUN = "begun"
    WRITING = "writing"
    WRITTEN = "written"
    RENAMED = "renamed"
    NAMED = "named"
    REMOVING = "removing"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveJob:
    """The job of a run: move rows whose dispatched time is older than `older_than_seconds` to the target."""

    dsn: SecretText
    outbox: TableName
    target: Target
    older_than_seconds: float
    batch_rows: int = 10_000
    opening: Opening = Opening.MADE

    def __post_init__(self) -> None:
        # A frozen dataclass can set its fields in no other way.
        object.__setattr__(self, "dsn", kept_dsn(self.dsn))


@dataclass(slots=True, kw_only=True)
class Archived:
    """The totals so far. Another session has removed `gone` rows; `changed` rows stay in the outbox for a later run."""

    rows: int = 0
    batches: int = 0
    files: list[str] = field(default_factory=list)
    gone: int = 0
    changed: int = 0
