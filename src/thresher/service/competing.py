"""Follows the election in the service's own thread: runs the workload while the process leads, waits while it does not.

1. A process that acquires leadership runs the workload, with the leader id as its term. Before, it writes nothing.
2. Lost leadership ends the workload. After `Revoked`, it has a second to finish its open batches. After `Fenced`, it
   ends at once, because another process may lead already. The process then competes on.
3. A process whose workload is superseded although it is elected resigns and cools down. Without an election, it ends.
4. A leader without progress resigns and cools down, so that another process may lead. If a lost server was the reason,
   the cool-down ends once all servers answer. Without other competitors, the process leads again.
5. At its end, the process leaves the election before it closes Spark, so that its successor need not wait for Spark.
"""

import contextlib
import logging
import time
from collections.abc import Callable
from uuid import UUID

from thresher.core.errors import Superseded, ThresherError
from thresher.election.leadership import Acquired, Change, Fenced, Leadership, Refreshed, Revoked
from thresher.service.events.announcer import Announcer
from thresher.service.events.leadership_reporter import LeadershipReporter
from thresher.service.events.meter import Meter
from thresher.service.leader_slot import LeadershipThread, LeaderSlot
from thresher.service.leading import Leading
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.server_log import ServerLog
from thresher.service.step_down import LeadershipPolicy, LeaderStall
from thresher.service.workload import Workload
from thresher.spark.session.warm import WarmSpark
from thresher.spark.signal_safe_event import SignalSafeEvent

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
# The time to finish open batches when leadership is handed over gracefully.
_HAND_OVER_SECONDS = 1.0


class Competing:
    """The loop of a service. `lead` makes a leadership for a leader id."""

    def __init__(
        self,
        workload: Workload,
        leadership: Leadership,
        warm: WarmSpark,
        *,
        lead: Callable[[UUID], Leading],
        slot: LeaderSlot,
        process_counts: ProcessCounts,
        announcer: Announcer,
        meter: Meter,
        stop_requested: SignalSafeEvent,
        kill_requested: SignalSafeEvent,
        policy: LeadershipPolicy,
        server_log: ServerLog,
    ) -> None:
        self._workload, self._leadership, self._warm = workload, leadership, warm
        self._lead, self._slot, self._process_counts = lead, slot, process_counts
        self._news, self._meter = LeadershipReporter(workload.name, announcer), meter
        self._stop_requested, self._kill_requested = stop_requested, kill_requested
        self._policy, self._server_log = policy, server_log
        # When the loop last ran; None while it waits for a leadership to end. For any thread.
        self.looked: float | None = None
        # The leader id while this process is elected.
        self._elected: UUID | None = None
        self._ready_logged = False

    def run(self) -> None:
        """Compete and lead until a stop is requested. Raises the error that ends the service."""
        while not self._stop_requested.is_set():
            self.looked = time.monotonic()
            change = self._leadership.wait(_LOOK_SECONDS)
            if change is not None:
                self._news.decided(change)
                self._follow(change)
                self._news.followed(change)
            self._step(time.monotonic())

    def end(self) -> BaseException | None:
        """End a running leadership, leave the election, and return the leadership's error."""
        leadership = self._leadership
        error = self._end(
            forced=self._kill_requested.is_set(),
            hurry=lambda: self._kill_requested.is_set() or leadership.leader_id is None,
        )
        leadership.stop()
        with contextlib.suppress(ThresherError):
            while (change := leadership.wait(0)) is not None:
                self._news.decided(change)
                self._news.followed(change)
        return error

    def _step(self, now: float) -> None:
        if self._warm.ready and not self._ready_logged:
            self._ready_logged = True
            logger.info("Spark is ready for %s", self._workload.name)
        current = self._slot.current
        self._server_log.log_due(now, standby=current is None)
        if current is None:
            if self._elected is None:
                # An application's own election need not know the leader.
                self._news.standing_by(getattr(self._leadership, "leader", None))
            # Raises if Spark is lost: without Spark, a standby could not lead.
            self._warm.check()
            if self._elected is not None and not self._policy.may_lead(now):
                if self._policy.gives_back(now):
                    logger.info("%s cools down, and gives leadership back", self._workload.name)
                    self._resign()
            elif self._elected is not None:
                leading = self._lead(self._elected)
                self._slot.begin(leading)
                self._policy.begin(leading, now)
                self._meter.begin(now)
        elif current.over:
            self._conclude(current)
        elif (stall := self._policy.stall(now)) is not None:
            self._step_down(current, stall)
        elif (reading := self._meter.due(now)) is not None:
            message = f"%s: %.0f rows a second, %d {self._workload.wording.done}"
            logger.debug(message, self._workload.name, reading.rate, reading.relayed)
            self._news.announce(reading)

    def _step_down(self, current: LeadershipThread, stall: LeaderStall) -> None:
        """End the leadership, which makes no progress, and resign."""
        label, name = self._workload.wording.label, self._workload.name
        message = f"the {label} %s gives leadership up, so that another process may lead: %s"
        logger.warning(message, name, stall.why, extra={label: name})
        self._process_counts.count("step_downs")
        lasted = current.lasted
        self._end(forced=False, seconds=_HAND_OVER_SECONDS)
        self._policy.stepped_down(stall, lasted=lasted, now=time.monotonic())
        self._resign()

    def _resign(self) -> None:
        """Resign, so that another process may be elected."""
        self._elected = None
        self._leadership.resign()

    def _follow(self, change: Change) -> None:
        match change:
            case Acquired(leader_id=leader_id) | Refreshed(leader_id=leader_id):
                self._elected = leader_id
            case Revoked():
                self._elected = None
                self._end(forced=False, seconds=_HAND_OVER_SECONDS)
            case Fenced():
                self._elected = None
                self._process_counts.count("fences.election")
                self._end(forced=True)

    def _conclude(self, ended: LeadershipThread) -> None:
        """Handle a leadership that has ended by itself: raise its error, or resign if it was superseded."""
        self._end(forced=False)
        if ended.error is not None and (self._policy.alone or not isinstance(ended.error, Superseded)):
            raise ended.error
        if self._leadership.leader_id is not None:
            label = self._workload.wording.label
            message = f"superseded although it was elected: do all {label}s of this name use the same election?"
            logger.warning(message)
        self._policy.superseded(lasted=ended.lasted, now=time.monotonic())
        self._resign()

    def _end(
        self, *, forced: bool, seconds: float | None = None, hurry: Callable[[], bool] | None = None
    ) -> BaseException | None:
        """End the leadership if one runs; return its error when nothing of it is left running."""
        if self._slot.current is None:
            return None
        self.looked = None
        error = self._slot.end(forced=forced, seconds=seconds, hurry=hurry or self._kill_requested.is_set)
        if isinstance(error, Superseded):
            self._news.superseded = str(error)
        return error
