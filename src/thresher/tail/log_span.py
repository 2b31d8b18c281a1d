"""Since which transaction, and with which publication, the WAL was read without a gap. Pure.

Every progress record holds the span.
1. The server decides by the publication at the moment of an insert whether it sends that insert. An insert that the
   publication left out is never sent, even if the publication is restored later. So after a change of the publication,
   a tail cannot know which rows are missing.
2. Rows of transactions before the span may be in the table without having been published: they are never deleted.
A new span begins with the first start of a tail, and when an operator adopts the slot.
"""

from dataclasses import dataclass, replace


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


def since_mark(taken_over: int, marked: int) -> int:
    """Return the first transaction id after that of a mark in the WAL, `marked`, of which the last 32 bits are known.

    The mark was written after the slot was made, so the slot has all transactions since. A mark that was written after
    the take-over tells nothing: then the result is `taken_over`.
    """
    before = (taken_over - marked - 1) % 2**32
    return taken_over if before >= 2**31 else taken_over - before


def behind_mark(span: LogSpan, first_xid: int) -> LogSpan:
    """Return the span extended back to this transaction. A record may be written before the mark is read."""
    return replace(span, first_xid=min(span.first_xid, first_xid))


def changed(recorded: LogSpan, published: str) -> bool:
    """Whether the publication may have left out inserts since the record. Without a table, it cannot."""
    return bool(recorded.published) and recorded.published != published
