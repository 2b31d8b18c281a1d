"""A tail's part of the status page and the metrics: its slot, its buffer, and its own figures.

It queries no server, but shows what the leader's watch found last. A standby shows nothing about the slot.
"""

from collections.abc import Iterator

from thresher.db.lsn import lsn_text
from thresher.observe.metric import Reading
from thresher.service.health import Role
from thresher.service.report import Observed, ServiceSnapshot, StatusPart
from thresher.tail.leader.figures import LatestLogFigures, LogFigures
from thresher.tail.leader.metrics import ERROR_KINDS, OWN_FAMILIES, readings
from thresher.tail.settings import TailSettings

# The shard's counters and gauges that the page shows.
_COUNTS = ("filtered", "dead", "recovered", "refused_messages", "transactions")
_GAUGES = ("buffered_rows", "buffered_bytes", "lag_seconds")


class TailReport:
    """The report of one tail. Safe from any thread."""

    families = OWN_FAMILIES
    error_kinds = ERROR_KINDS

    def __init__(self, settings: TailSettings, observed: Observed, board: LatestLogFigures) -> None:
        self._settings, self._observed, self._board = settings, observed, board

    def ask(self) -> LogFigures | None:
        """Return the watch's last figures; None on a standby."""
        return None if self._observed.role is Role.STANDBY else self._board.figures

    def status(self, snapshot: ServiceSnapshot, answer: LogFigures | None) -> StatusPart:
        """Return the outbox, its slot, and the shard's counters and gauges."""
        settings, figures = self._settings, answer or LogFigures()
        return StatusPart(
            page={
                "outbox": settings.outbox.quoted(),
                "via": str(settings.via),
                "slot": settings.slot_name,
                "confirmed": None if figures.confirmed is None else lsn_text(figures.confirmed),
                "retained_bytes": figures.retained_bytes,
                "wal_status": figures.wal_status,
                "dead_rows": figures.dead_rows,
                "lag_seconds": max((each.gauges.get("lag_seconds", 0.0) for each in snapshot.shards), default=None),
            },
            shards={
                each.shard: {
                    **{name: snapshot.counts.get(each.shard, {}).get(name, 0) for name in _COUNTS},
                    **{name: each.gauges.get(name) for name in _GAUGES},
                }
                for each in snapshot.shards
            },
        )

    def readings(self, snapshot: ServiceSnapshot, answer: LogFigures | None) -> Iterator[Reading]:
        """Yield a tail's own metrics."""
        return readings(snapshot, answer)

    def close(self) -> None:
        """Nothing to close."""
