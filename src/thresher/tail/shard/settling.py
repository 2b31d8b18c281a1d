"""Settles committed transactions in a thread of its own: writes dead rows, and confirms the slot.

1. As soon as a transaction is committed, its changes leave the buffer.
2. Its dead changes are written to the dead table. Recovery repairs a crash before that: the slot is not confirmed
   beyond them, so the server sends them again.
3. Only then the slot is confirmed up to the position that the committed record notes.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing

from thresher.delivery.crash_points import CrashPoint, CrashPoints
from thresher.delivery.effects import AwaitSettled, Handlers, Settle
from thresher.delivery.reading.read_ahead import ReadAhead
from thresher.delivery.shard.meter import Meter
from thresher.delivery.shard.settler import Settler
from thresher.spark.worker.shard import Shard
from thresher.tail.buffer import DeadChange, LogBuffer
from thresher.tail.coverage import Coverage
from thresher.tail.progress import TailProgress

# Writes rows to the dead table in one transaction. The second argument is called before that transaction commits.
SetAside = Callable[[Sequence[DeadChange], Callable[[], None]], None]


class TailSettling:
    """Settles records. `adopt` returns the coverage of a record that recovery found; `confirm` confirms the slot."""

    def __init__(
        self,
        shard: Shard,
        buffer: LogBuffer,
        ahead: ReadAhead,
        meter: Meter,
        crash: CrashPoints,
        *,
        set_aside: SetAside,
        adopt: Callable[[TailProgress], Coverage],
        confirm: Callable[[int], None],
    ) -> None:
        self._shard, self._buffer, self._ahead = shard, buffer, ahead
        self._meter, self._crash = meter, crash
        self._set_aside, self._adopt, self._confirm = set_aside, adopt, confirm
        self._step = shard.step("settle")
        self.settler: Settler[TailProgress] = shard.enter(closing(Settler(self._settle)))

    @property
    def handlers(self) -> Handlers:
        """The handler of each effect."""
        return {
            Settle: self._begin,
            AwaitSettled: lambda effect: self.settler.wait(effect.within_seconds),
        }

    def _begin(self, effect: Settle) -> None:
        progress: TailProgress = effect.progress  # type: ignore[assignment]
        if not effect.recovering:
            self._buffer.decide(progress.ids, progress.coverage)
        self.settler.begin(progress, effect.recovering)

    def _settle(self, progress: TailProgress, recovering: bool) -> None:
        """Settle one record. In the settler's thread."""
        with self._step:
            self._execute(progress, recovering)

    def _execute(self, progress: TailProgress, recovering: bool) -> None:
        began = time.monotonic()
        point = CrashPoint.RECOVERY_SETTLING if recovering else CrashPoint.SETTLING
        dead = self._buffer.cover(self._adopt(progress)) if recovering else list(progress.dead.values())
        if dead:
            self._set_aside(dead, lambda: self._crash.reach(point, progress.ids))
            self._crash.reach(CrashPoint.DEAD_WRITTEN, progress.ids)
        else:
            self._crash.reach(point, progress.ids)
        if recovering:
            if dead:
                self._shard.count("recovered", len(dead))
            return
        self._ahead.settled(progress.ids, progress.create_times)
        self._confirm(progress.coverage.noted)
        if progress.ids:
            self._meter.settled(time.monotonic() - began)
        self._crash.reach(CrashPoint.SETTLED, progress.ids)
