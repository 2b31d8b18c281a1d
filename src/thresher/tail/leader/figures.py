"""The driver's last figures about the slot and the WAL: for pages, metrics and alarms."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFigures:
    """The slot as the server reports it, and the count of dead rows."""

    # Bytes of WAL that the server keeps for the slot; None if it does not say.
    retained_bytes: int | None = None
    confirmed: int | None = None
    wal_status: str | None = None
    dead_rows: int | None = None
    # Published rows that were deleted after `keep_seconds`, since the process started.
    trimmed: int = 0


def slot_alarms(figures: LogFigures, slot: str, *, most_bytes: int) -> dict[str, str]:
    """Return the alarms about a slot, under names that no topic has: those are alarms about held topics."""
    alarms, kept = {}, figures.retained_bytes
    if figures.wal_status == "unreserved":
        alarms["the slot"] = f"the server may remove WAL that slot {slot} needs at the next checkpoint"
    if kept is not None and kept > most_bytes:
        alarms["retained log"] = f"the server keeps {kept:,} bytes of WAL for slot {slot}"
    return alarms


@dataclass(slots=True)
class LatestLogFigures:
    """Holds the last figures, which are replaced as a whole: any thread may read them."""

    figures: LogFigures | None = None
    # The transaction since which the WAL was read without a gap, as the shard reports it; None before its report.
    first_xid: int | None = None
