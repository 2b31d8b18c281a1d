"""Since when, and by what, the log has been read without a gap. Pure. Every progress record says it.

1. The server judges each insert by the publication as it was at that moment. An insert that went by it is not in the
   log, also once the publication is as before: whoever finds it changed cannot know what is missing.
2. Rows of older transactions may be in the table although nobody has published them: they are never deleted.
Both begin anew with the first start of a tail, and when an operator adopts the slot as it is.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpan:
    """A stretch of the log without a gap, to its end."""

    # The publication, the table and its membership, as the database tells them apart; empty where there is no table.
    published: str = ""
    # All that this transaction and later ones commit is in it; 0 if that is not known.
    first_xid: int = 0

    @property
    def table(self) -> int | None:
        """The number of the table; None where there is none."""
        number = self.published.rpartition("/")[2]
        return int(number) if number else None


# Of a record that says nothing of it.
UNKNOWN = LogSpan()


def goes_on(recorded: LogSpan, now: LogSpan) -> LogSpan:
    """Return the span of a record without a gap behind it."""
    return replace(now, first_xid=recorded.first_xid or now.first_xid)


def since_mark(taken_over: int, marked: int) -> int:
    """Return the first transaction that began after a mark in the log, by the last 32 bits of the mark's own.

    The mark was made after the slot: so all of them are in its log. One that was made after the take-over says nothing.
    """
    before = (taken_over - marked - 1) % 2**32
    return taken_over if before >= 2**31 else taken_over - before


def behind_mark(span: LogSpan, first_xid: int) -> LogSpan:
    """Return the span if all since this transaction is in the log: a record may be written before the mark is read."""
    return replace(span, first_xid=min(span.first_xid, first_xid))


def changed(recorded: LogSpan, published: str) -> bool:
    """Whether inserts may have gone by the publication since the record; those without a table cannot."""
    return bool(recorded.published) and recorded.published != published
