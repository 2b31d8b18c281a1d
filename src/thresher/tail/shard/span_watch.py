"""Checks that the publication leaves out no insert, and knows since which transaction the WAL has no gap.

Before the slot is confirmed at a position that was read, publication and table are compared with those of the
take-over. So for every confirmed position it holds that the publication left out no insert before it.
"""

from collections.abc import Callable

from thresher.db.postgres.replication.slots import PostgresSlots
from thresher.tail.log_span import LogSpan, changed, goes_on
from thresher.tail.log_state import LogState, not_published
from thresher.tail.problem import LogLost
from thresher.tail.settings import TailAssignment


class SpanWatch:
    """The span of one attempt. `tell` is called with the first transaction id whenever that changes."""

    def __init__(self, assignment: TailAssignment, slots: PostgresSlots, tell: Callable[[int], None]) -> None:
        self._assignment, self._slots, self._tell = assignment, slots, tell
        self._span = assignment.span
        self._confirmed = 0
        self._told: int | None = None

    def go_on(self, recorded: LogSpan, state: LogState) -> None:
        """Continue a record's span. Raises `LogLost` if the publication may have left out inserts since the record."""
        if changed(recorded, state.published):
            # The record may note a position for which the publication was not compared yet; the slot cannot be there.
            raise self._lost(state.confirmed)
        self._span = goes_on(recorded, self._assignment.span)

    def begin(self, confirmed: int) -> None:
        """Set the confirmed position of the slot whose stream is read."""
        self._confirmed = confirmed

    def span(self) -> LogSpan:
        """Return the span for the next record: that of the record before, or of the take-over."""
        return self._span

    def require_published(self, lsn: int) -> None:
        """Raise `LogLost` if the publication may have left out inserts before this position. Queries the catalog."""
        settings = self._assignment.settings
        if settings.table is not None:
            now = self._slots.published(settings.publication_name, settings.table)
            if now != self._assignment.span.published:
                raise self._lost(self._confirmed)
        self._confirmed = max(self._confirmed, lsn)
        first = self.span().first_xid
        if first != self._told:
            self._tell(first)
            self._told = first

    def _lost(self, confirmed: int) -> LogLost:
        return LogLost(not_published(confirmed, self._assignment.settings.source, self._assignment.settings.name))
