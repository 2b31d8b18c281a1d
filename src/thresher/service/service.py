"""A process that runs a workload while it leads: it competes, leads, reports and stops.

1. `start` joins the election and opens a Spark session. A standby keeps its session open, so that it can lead at once.
2. While the process leads, the workload takes over, runs and is watched. `competing` says when that begins and ends.
3. `stop` lets the workload finish its open batches, then leaves the election, and only then ends Spark.

One thread does all of this. Other threads send it requests, or read values that are replaced as a whole. After a crash,
the election's membership times out, Spark's processes end themselves, and a standby leads.
"""

import enum
import logging
import math
import random
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self, TypeVar
from uuid import UUID

from thresher.core.errors import Superseded, ThresherError
from thresher.core.interruptible import interruptible
from thresher.election.leadership import Leadership
from thresher.observe.logs import forwarded_to
from thresher.service.candidate import Candidate
from thresher.service.competing import Competing
from thresher.service.cool_down import STEP_DOWN_SECONDS
from thresher.service.events.announcer import Announcer, Handler
from thresher.service.events.meter import Meter
from thresher.service.health import Role
from thresher.service.leader_slot import LeaderSlot
from thresher.service.leading import Leading, spark_of
from thresher.service.problem import ServiceMisused
from thresher.service.process_counts import ProcessCounts
from thresher.service.servers.probing import Probing
from thresher.service.servers.reach import ELECTION_WAITS, Reach
from thresher.service.servers.server_log import ServerLog
from thresher.service.step_down import LeadershipPolicy
from thresher.service.workload import Workload
from thresher.spark.driver.snapshot import Snapshot
from thresher.spark.problem import StopForced
from thresher.spark.session.settings import SparkOptions
from thresher.spark.session.warm import WarmSpark
from thresher.spark.signal_safe_event import SignalSafeEvent

_EVENTS_SECONDS = 5.0
T = TypeVar("T", bound=Handler)


class State(enum.StrEnum):
    """The states of a service, in order. It never returns to an earlier one."""

    CREATED = "Created"
    RUNNING = "Running"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


class Service(Candidate):
    """A process that competes to run one workload. A context manager: entering starts, leaving stops. Thread-safe.

    `election` is called at the start, and returns the competitor. `alone` says that no other process competes: being
    superseded then ends the service. A `logger` gets all log records of Thresher. A leader without progress for
    `step_down_seconds` lets another process lead.
    """

    # The name of its own thread on /healthz and in its messages, and the error of a call that the state forbids.
    _noun: ClassVar[str] = "service"
    _misused: ClassVar[type[ServiceMisused]] = ServiceMisused

    def __init__(
        self,
        workload: Workload,
        *,
        election: Callable[[], Leadership],
        alone: bool = False,
        spark: SparkOptions | None = None,
        logger: logging.Logger | None = None,
        metrics_seconds: float = 5.0,
        step_down_seconds: float = STEP_DOWN_SECONDS,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.workload = workload
        # The counts of this process, over all its leaderships.
        self.process_counts = ProcessCounts()
        self.reach = Reach(workload.probes)
        self._spark = spark_of(workload, spark)
        self._announcer = Announcer(f"{self._noun}-events")
        self._slot = LeaderSlot()
        self._state = State.CREATED
        self._error: BaseException | None = None
        self._lock = threading.RLock()
        self._stop_requested, self._kill_requested = SignalSafeEvent(), SignalSafeEvent()
        self._done = threading.Event()
        self._competing: Competing | None = None

        def run() -> None:
            try:
                with forwarded_to(logger):
                    self._run(
                        election,
                        alone=alone,
                        metrics_seconds=metrics_seconds,
                        step_down_seconds=step_down_seconds,
                        draw=draw,
                    )
            finally:
                self._state = State.STOPPED
                self._done.set()

        self._thread = threading.Thread(target=run, name=self._noun, daemon=True)

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    @property
    def role(self) -> Role:
        """The present role of this process."""
        match self._state:
            case State.STOPPED:
                return Role.STOPPED if self._error is None else Role.FAILED
            case State.STOPPING:
                return Role.STOPPING
            case _:
                return self._slot.role

    @property
    def term(self) -> str | None:
        """The term under which the workload runs here."""
        leading = self._slot.leading
        return None if leading is None else leading.term

    @property
    def alarms(self) -> dict[str, str]:
        """Things that wait, such as topics, and why."""
        leading = self._slot.leading
        return {} if leading is None else dict(leading.alarms)

    @property
    def waiting_for(self) -> str | None:
        """The reason why this process cannot take over yet, or why it cannot be elected."""
        leading = self._slot.leading
        return (None if leading is None else leading.waiting_for) or _trouble_of(self._leadership)

    @property
    def trouble(self) -> tuple[str, str] | None:
        """Kind and text of the problem that a leader, or its election, has with a server.

        None for a standby: its health lists its servers, with the election as one of them.
        """
        leading, waits = self._slot.leading, _trouble_of(self._leadership)
        if leading is None:
            return None
        return leading.trouble or (None if waits is None else (ELECTION_WAITS, waits))

    def silent_seconds(self) -> dict[str, float]:
        """Return for how many seconds each driver thread has been unresponsive; infinite if it has died."""
        leading, competing = self._slot.leading, self._competing
        silent = {} if leading is None else leading.silent_seconds()
        looked = None if competing is None else competing.looked
        if self._state is State.RUNNING and looked is not None:
            silent[self._noun] = time.monotonic() - looked if self._thread.is_alive() else math.inf
        return silent

    def snapshot(self) -> Snapshot | None:
        """Return the engine's snapshot, or its last one from the latest leadership; None if this process never led."""
        return self._slot.snapshot()

    def on_event(self, handler: T) -> T:
        """Call the handler with every event from now on, in the events' own thread. Returns it, as a decorator does."""
        self._announcer.add(handler)
        return handler

    def _check(self) -> None:
        """Raise the errors that can be found before anything is started."""
        self.workload.check(local=self._spark.master is None)

    def start(self) -> None:
        """Start, and return at once. Raises `ServiceMisused` when repeated, and the errors of `Workload.check`."""
        if self._state is State.CREATED:
            # Not under the lock: the check imports the user's code, and a stop must not wait for that.
            self._check()
        with self._lock:
            if self._state is not State.CREATED:
                raise self._misused(f"a {self._noun} is started once, and this one is {self._state}: make another")
            self._state = State.RUNNING
            self._announcer.start()
            self._thread.start()

    def request_stop(self) -> None:
        """Request a graceful stop, and return at once. Safe in a signal handler, harmless in every state."""
        self._stop_requested.set("stop")

    def kill(self) -> None:
        """End at once; open batches are not finished. Safe in a signal handler. `wait` then raises `StopForced`."""
        self._kill_requested.set("kill")
        self._stop_requested.set("kill")

    def stop(self) -> None:
        """Stop gracefully and return when nothing is left running. Harmless in every state; raises nothing."""
        with self._lock:
            if self._state is State.CREATED:
                self._state = State.STOPPED
                self._done.set()
                return
        self.request_stop()
        if threading.current_thread() not in {self._thread, self._announcer.thread}:
            with interruptible():
                self._done.wait()

    def wait(self, seconds: float | None = None) -> State:
        """Wait for the end, at most `seconds`, and return the state. Raises the error that ended the service."""
        if self._state is State.CREATED:
            raise self._misused(f"the {self._noun} was not started")
        with interruptible():
            done = self._done.wait(seconds)
        if done and self._error is not None:
            raise self._error
        return self._state

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        # An error that the `with` body raised says more than the service's.
        if kind is None and self._error is not None:
            raise self._error

    def _run(
        self,
        election: Callable[[], Leadership],
        *,
        alone: bool,
        metrics_seconds: float,
        step_down_seconds: float,
        draw: Callable[[], float],
    ) -> None:
        """Run the service from its start to its end, in its own thread."""
        workload, process_counts = self.workload, self.process_counts
        warm = WarmSpark(self._spark, name=workload.name, shards=workload.shards)
        probing = Probing(workload.probes, self.reach, process_counts)
        try:
            warm.start()
            probing.start()
            leadership = election()
            self._leadership = leadership
            self.reach.election = lambda: leadership.trouble

            def done() -> int:
                return process_counts.total(workload.wording.done)

            def lead(leader_id: UUID) -> Leading:
                return Leading(
                    workload,
                    spark=self._spark,
                    draw=draw,
                    process_counts=process_counts,
                    reach=self.reach,
                    warm=warm,
                    terms=_terms(leadership, leader_id),
                    wanted=lambda: leadership.leader_id is not None,
                    announce=self._announcer.announce,
                )

            competing = Competing(
                workload,
                leadership,
                warm,
                lead=lead,
                slot=self._slot,
                process_counts=process_counts,
                announcer=self._announcer,
                meter=Meter(metrics_seconds, done, time.monotonic()),
                stop_requested=self._stop_requested,
                kill_requested=self._kill_requested,
                policy=LeadershipPolicy(self.reach, done, step_down_seconds=step_down_seconds, alone=alone),
                server_log=ServerLog(self.reach, label=workload.wording.label, name=workload.name),
            )
            self._competing = competing
            leadership.start()
            ended_with: BaseException | None = None
            try:
                competing.run()
            finally:
                self._state = State.STOPPING
                ended_with = competing.end()
            if self._kill_requested.is_set():
                self._error = StopForced("stopped at once: open batches were not finished")
            elif _needs_an_operator(ended_with):
                self._error = ended_with
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
        finally:
            probing.close()
            warm.close(self._kill_requested)
            self._announcer.close(0 if self._kill_requested.is_set() else _EVENTS_SECONDS)


def _trouble_of(leadership: Leadership | None) -> str | None:
    return None if leadership is None else leadership.trouble


def _terms(leadership: Leadership, leader_id: UUID) -> Callable[[], str]:
    """Return the source of term ids for one leadership: the leader id first, then fresh ids."""
    first = [str(leader_id)]

    def term() -> str:
        # Another take-over within the same leadership follows a restore of the database, and needs a new id.
        return first.pop() if first else str(leadership.refresh() or uuid.uuid4())

    return term


def _needs_an_operator(error: BaseException | None) -> bool:
    """Whether an operator has to act on the error of a leadership that was stopped.

    No action is needed if a successor took over, if time ran out, or after a retryable error: the successor recovers.
    """
    if error is None or isinstance(error, Superseded | StopForced):
        return False
    return not (isinstance(error, ThresherError) and error.retryable)
