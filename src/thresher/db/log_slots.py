"""A replication slot, a publication and the server, as Postgres describes them: what a tail needs to know."""

import re
from dataclasses import dataclass

from thresher.db.lsn import lsn_number, lsn_text

_NOTE = re.compile(r"thresher: slots have all inserts since transaction (\d+) and (\S+), published as (\S+)")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMark:
    """Notes, beside the publication, since when a slot has all inserts: it was written after the slot was made.

    A slot that was confirmed at `position` or before has all inserts of the transaction `first_xid` and of later ones,
    as long as the publication is as it was then. A slot that was made later is confirmed beyond the position.
    """

    published: str
    position: int
    first_xid: int

    @property
    def note(self) -> str:
        """The mark as the text of a comment."""
        since = f"transaction {self.first_xid} and {lsn_text(self.position)}"
        return f"thresher: slots have all inserts since {since}, published as {self.published}"


def mark_of(note: str | None) -> SlotMark | None:
    """Return the mark that a comment holds; None if it is not ours."""
    found = _NOTE.fullmatch(note or "")
    if found is None:
        return None
    first_xid, position, published = found.groups()
    return SlotMark(published=published, position=lsn_number(position), first_xid=int(first_xid))
