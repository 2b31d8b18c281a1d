"""A replication slot, a publication and the server, as Postgres describes them: what a tail needs to know."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogServer:
    """The server, and whether the session's user may replicate."""

    version: int
    wal_level: str
    database: str
    user: str
    may_replicate: bool

    @property
    def has_failover_slots(self) -> bool:
        """Whether standbys can keep slots, so that slots survive a failover."""
        return self.version >= 170_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSlot:
    """A replication slot. Positions (LSN) are numbers; None if the server has none."""

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    # reserved, extended, unreserved or lost.
    wal_status: str | None
    invalidation: str | None
    confirmed: int | None
    restart: int | None
    # How much WAL the server keeps for this slot.
    retained_bytes: int | None
    # How much more WAL may be written before the slot is lost; None without a limit (max_slot_wal_keep_size).
    safe_bytes: int | None
    failover: bool

    @property
    def lost(self) -> bool:
        """Whether the server has removed WAL that the slot's reader had not confirmed."""
        return self.wal_status == "lost" or self.invalidation is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A publication, and what it says of one table if a table was given."""

    name: str
    inserts: bool
    includes_table: bool
    row_filter: str | None
