"""What the driver of a tail knows of the log, by its last look: for pages, metrics and alarms."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures:
    """The slot, as the server tells it, and what was set aside."""

    # How much log the server keeps for the slot; None if it does not say.
    retained_bytes: int | None = None
    confirmed: int | None = None
    wal_status: str | None = None
    dead_rows: int | None = None
    # Rows of the table that were deleted after their time, since the process started.
    trimmed: int = 0


@dataclass(slots=True)
class LogBoard:
    """Holds the last figures, replaced as a whole: read by any thread."""

    figures: LogFigures | None = None
    # From which transaction on the log was read without a gap, as the shard says; None until it does.
    first_xid: int | None = None
