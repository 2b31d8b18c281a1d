"""Since which transaction, and with which publication, the WAL was read without a gap. Pure.

Every progress record holds the span.
1. The server decides by the publication at the moment of an insert whether it sends that insert. An insert that the
   publication left out is never sent, even if the publication is restored later. So after a change of the publication,
   a tail cannot know which rows are missing.
2. Rows of transactions before the span may be in the table without having been published: they are never deleted.
A new span begins with the first start of a tail, and when an operator adopts the slot.
"""

from dataclasses import dataclass, replace

from thresher.db.log_slots import SlotMark


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """A part of the WAL without a gap, up to its end."""

    # Identity of the publication, the table, and its membership in the publication; empty without a table.
    published: str = ""
    # All rows of this transaction and later ones are in the span; 0 if unknown.
    first_xid: int = 0

    @property
    def table(self) -> int | None:
        """The OID of the table; None without a table."""
        number = self.published.rpartition("/")[2]
        return int(number) if number else None


# For a record that holds no span.
UNKNOWN = LogSpan()


def goes_on(recorded: LogSpan, now: LogSpan) -> LogSpan:
    """Return the span that continues a recorded one without a gap."""
    return replace(now, first_xid=recorded.first_xid or now.first_xid)


def since_mark(taken_over: LogSpan, mark: SlotMark | None, confirmed: int) -> LogSpan:
    """Return the span of a take-over, extended back to where its slot was made, if a mark says so.

    The slot is confirmed at `confirmed`. A mark from before the slot was made, or before the publication was changed,
    tells nothing.
    """
    if mark is None or mark.published != taken_over.published or confirmed > mark.position:
        return taken_over
    return replace(taken_over, first_xid=min(taken_over.first_xid, mark.first_xid))


def changed(recorded: LogSpan, published: str) -> bool:
    """Whether the publication may have left out inserts since the record. Without a table, it cannot."""
    return bool(recorded.published) and recorded.published != published
