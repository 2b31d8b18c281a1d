"""Watches by what the log is read: that no insert goes by it unnoticed, and from which transaction on all were read.

Before the slot is confirmed, the publication and the table are compared with those of the take-over. The position was
read before that. So whoever finds the slot later knows that no insert before its position has gone by the publication.
"""

from collections.abc import Callable

from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.tail.log_span import LogSpan, behind_mark, changed, goes_on, since_mark
from thresher.tail.log_stand import LogStand, not_published
from thresher.tail.problem import LogLost
from thresher.tail.settings import TailMandate
from thresher.tail.stream import LogStream


class SpanWatch:
    """The span of one attempt. `tell` is given the first transaction, whenever another one is known."""

    def __init__(self, mandate: TailMandate, slots: PostgresSlots, tell: Callable[[int], None]) -> None:
        self._mandate, self._slots, self._tell = mandate, slots, tell
        self._span = mandate.span
        self._stream: LogStream | None = None
        self._confirmed = 0
        self._told: int | None = None

    def go_on(self, recorded: LogSpan, stand: LogStand) -> None:
        """Go on with what a record says. Raises `LogLost` if inserts may have gone by the publication since."""
        if changed(recorded, stand.published):
            # What is noted may be beyond what was watched; the slot is not.
            raise self._lost(stand.confirmed)
        self._span = goes_on(recorded, self._mandate.span)

    def begin(self, stream: LogStream, confirmed: int) -> None:
        """Take in the stream that is read, and how far its slot is confirmed."""
        self._stream, self._confirmed = stream, confirmed

    def span(self) -> LogSpan:
        """Return what a record says, by the record before it, and by a mark that was read since."""
        taken_over = self._mandate.span
        marked = None if self._stream is None else self._stream.marked_xid(taken_over.published)
        if marked is None:
            return self._span
        return behind_mark(self._span, since_mark(taken_over.first_xid, marked))

    def require_published(self, lsn: int) -> None:
        """Raise `LogLost` if inserts before this position may not be in the log. A query of the catalog."""
        settings = self._mandate.settings
        if settings.table is not None:
            now = self._slots.published(settings.publication_name, settings.table)
            if now != self._mandate.span.published:
                raise self._lost(self._confirmed)
        self._confirmed = max(self._confirmed, lsn)
        first = self.span().first_xid
        if first != self._told:
            self._tell(first)
            self._told = first

    def _lost(self, confirmed: int) -> LogLost:
        return LogLost(not_published(confirmed, self._mandate.settings.source, self._mandate.settings.name))
