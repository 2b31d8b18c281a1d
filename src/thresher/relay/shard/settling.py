"""Settles committed progress records in a thread of its own, while the next transaction is filled.

Only a committed progress record removes a row. After a crash before or during a settling, recovery settles the same
record again.
"""

import time
import uuid
from collections.abc import Callable
from contextlib import closing

from thresher.db.outbox_store import StoreSession
from thresher.db.problem import DatabaseLost
from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.delivery.effects import AwaitSettled, Handlers, Reset, Settle
from thresher.delivery.reading.read_ahead import ReadAhead
from thresher.delivery.shard.meter import Meter
from thresher.delivery.shard.settler import Settler
from thresher.relay.protocol.progress import Progress
from thresher.relay.settings import ShardAssignment
from thresher.relay.settle import Settlement
from thresher.spark.worker.shard import Shard


class SettleSteps:
    """Executes fates, and removes marks. `leader` returns the mark of a generation; None if rows are not marked."""

    def __init__(
        self,
        assignment: ShardAssignment,
        session: StoreSession,
        ahead: ReadAhead,
        leader: Callable[[int], uuid.UUID] | None,
        crash: CrashPoints,
        shard: Shard,
        meter: Meter,
    ) -> None:
        self._ahead, self._leader = ahead, leader
        self._crash, self._shard, self._meter = crash, shard, meter
        self._settlement = Settlement(session.settlement)
        self._session, self._relay, self._term = session, assignment.settings.name, assignment.term
        self._sweeps = assignment.settings.sweeps
        self._gone = 0
        self._step = shard.step("settle")
        self.settler: Settler[Progress] = shard.enter(closing(Settler(self._settle)))

    @property
    def handlers(self) -> Handlers:
        """The function that performs each effect."""
        return {
            Settle: lambda effect: self.settler.begin(effect.progress, effect.recovering),
            AwaitSettled: self._await_settled,
            Reset: self._reset,
        }

    def _await_settled(self, effect: AwaitSettled) -> bool:
        if not self.settler.wait(effect.within_seconds):
            return False
        gone, self._gone = self._gone, 0
        if gone:
            self._shard.event("gone", rows=gone)
        return True

    def _reset(self, effect: Reset) -> None:
        if effect.ids and self._leader is not None:
            marks = self._session.marks(self._relay, self._term)
            marks.reset(effect.ids, self._leader(self._ahead.generation))

    def _settle(self, progress: Progress, recovering: bool) -> None:
        """Execute one record's fates. In the settler's thread."""
        with self._step:
            self._execute(progress, recovering)

    def _execute(self, progress: Progress, recovering: bool) -> None:
        point = CrashPoint.RECOVERY_SETTLING if recovering else CrashPoint.SETTLING
        began = time.monotonic()
        mark = None if self._leader is None or recovering else self._leader(self._ahead.generation)
        found = self._settlement.execute(progress, lambda: self._crash.reach(point, progress.ids), mark)
        self._ahead.settled(progress.ids, progress.create_times)
        if recovering and found:
            self._shard.count("recovered", found)
        lacking = len(progress.ids) - found
        if lacking:
            self._settlement.require_gone(progress, mark, recovering=recovering)
        if lacking and self._sweeps and not recovering:
            # The application's dispatcher stamps rows too: rows that it has stamped meanwhile are not missing.
            lacking = self._settlement.lacks(progress)
        if lacking:
            if mark is not None:
                # Another attempt would send the rows that it has marked after later rows of their keys that we send.
                raise DatabaseLost(
                    f"{lacking} of {len(progress.ids)} rows were gone, or marked by another process, before they were "
                    "settled: another process works on this table, so the shard starts over"
                )
            if not recovering:
                # The task's own thread reports the number when it next waits for this one.
                self._gone += lacking
        if not recovering:
            self._meter.settled(time.monotonic() - began)
            self._crash.reach(CrashPoint.SETTLED, progress.ids)
