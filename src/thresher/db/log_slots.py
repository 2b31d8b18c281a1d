"""What a database says of a replication slot, of a publication, and of itself, as far as a tail needs it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogServer:
    """The server, and what the session's user may do there."""

    version: int
    wal_level: str
    database: str
    user: str
    may_replicate: bool

    @property
    def has_failover_slots(self) -> bool:
        """Whether standbys can keep slots, so that they outlive a failover."""
        return self.version >= 170_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlot:
    """A replication slot. Positions are numbers; None where the server has none."""

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    # reserved, extended, unreserved or lost.
    wal_status: str | None
    invalidation: str | None
    confirmed: int | None
    restart: int | None
    # How much log the server keeps for this slot.
    retained_bytes: int | None
    # How much more may be written before the slot is lost; None without a limit (max_slot_wal_keep_size).
    safe_bytes: int | None
    failover: bool

    @property
    def lost(self) -> bool:
        """Whether log is gone that the slot has not been confirmed of."""
        return self.wal_status == "lost" or self.invalidation is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A publication, with regard to one table if one was asked for."""

    name: str
    inserts: bool
    includes_table: bool
    row_filter: str | None
