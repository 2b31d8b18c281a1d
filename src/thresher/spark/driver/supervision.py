"""Decides the next step for a shard: a pure function from its state and an event to its new state and commands.

Guarantees, which `tests/property/test_supervision_property.py` checks against a model:
1. An attempt is launched only after Spark has reported the end of the one before it. Attempts count from 1.
2. After a stop, a fatal outcome, the end of the source or the end of Spark, nothing is launched again.
3. A failed attempt is followed by a back-off, which grows with the failures in a row; a healthy attempt resets it.
   With a limit on restarts, a shard that has used it up has failed.
4. A task is welcomed only if it belongs to the running attempt and is newer than every task welcomed before it.
5. A task is ended by force if it is silent, does not stop in time, or has lost its line and goes on. If Spark does
   not report its end, the command is repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from thresher.spark.outcome import Fatal, Finished, Outcome, Replaced, SparkLost, Stopped, TaskLost, Transient
from thresher.spark.policy import Policy

# A forced end is repeated if Spark has not reported it after this time.
_ENDING_SECONDS = 5.0
# A stopping task is ended by force this long after its grace period.
_OVERDUE_SECONDS = 2.0


class Phase(StrEnum):
    """The phases of a shard's life cycle. The last three are final."""

    NEW = "new"
    STARTING = "starting"
    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    BACKING_OFF = "backing off"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether the phase is final."""
        return self in {Phase.FINISHED, Phase.STOPPED, Phase.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRequested:
    """The engine starts: launch the shard for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A task has connected. `task` is Spark's task attempt id: Spark may start an attempt's task again by itself."""

    attempt: int
    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameReceived:
    """The welcomed task sent a frame, such as a heartbeat."""

    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineClosed:
    """A task's line is closed. The attempt may run on for a moment, or Spark may start its task again."""

    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """Spark has reported the end of the attempt's job."""

    attempt: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The engine stops gracefully: tasks finish their open batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillRequested:
    """The engine stops at once: open batches are not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A deadline may have passed, see `next_deadline`."""


Event = StartRequested | Hello | FrameReceived | LineClosed | AttemptEnded | StopRequested | KillRequested | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start this attempt as a Spark job of its own."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Accept the task's hello, and kill the task that had the line before."""

    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Refuse the task's hello: a newer task has replaced it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendStop:
    """Tell the task to finish its open batch and end."""

    grace_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForceEnd:
    """End the attempt by force: kill its process if it is on this machine, and cancel its Spark job."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLine:
    """Kill the task that still has the line, because its attempt is over, and close the line."""


Command = Launch | Welcome | Refuse | SendStop | ForceEnd | CloseLine


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """The state of a shard. Times are the driver's monotonic seconds."""

    phase: Phase = Phase.NEW
    since: float = 0.0
    attempt: int = 0
    # Spark's id of the task that has the line, and of the newest task of this attempt that ever had it.
    task: int | None = None
    newest_task: int = -1
    heard_at: float = 0.0
    # When the current attempt's newest task was welcomed.
    welcomed_at: float | None = None
    # Failures in a row, and the total of restarts.
    failures: int = 0
    restarts: int = 0
    last_error: str | None = None
    outcome: Outcome | None = None
    # When the back-off ends, or a stopping task is overdue.
    due: float | None = None
    # When the attempt was last ended by force.
    forced_at: float | None = None


Decision = tuple[ShardState, tuple[Command, ...]]


def decide(state: ShardState, event: Event, *, now: float, policy: Policy, draw: Callable[[], float]) -> Decision:
    """Return the new state and the commands, in order. `draw` returns a random number from 0 to 1."""
    if state.phase.over:
        return state, (Refuse(),) if isinstance(event, Hello) else ()
    nothing: Decision = state, ()
    match event:
        case StartRequested():
            decision = _launch(state, now) if state.phase is Phase.NEW else nothing
        case Hello():
            decision = _hello(state, event, now, policy)
        case FrameReceived(task=task):
            decision = (replace(state, heard_at=now), ()) if task == state.task else nothing
        case LineClosed(task=task):
            decision = (_without_line(state, now), ()) if task == state.task else nothing
        case AttemptEnded(attempt=attempt, outcome=outcome):
            decision = _ended(state, outcome, now, policy, draw) if attempt == state.attempt else nothing
        case StopRequested():
            decision = _stop(state, now, policy)
        case KillRequested():
            decision = _kill(state, now)
        case Tick():
            decision = _tick(state, now, policy)
    return decision


def next_deadline(state: ShardState, policy: Policy) -> float | None:
    """Return when the next `Tick` can change anything, or None."""
    times = [state.due]
    if state.phase is Phase.STARTING:
        times.append(state.since + policy.slot_seconds)
    if state.task is not None:
        times.append(state.heard_at + policy.silence_seconds)
    if state.forced_at is not None:
        times = [state.forced_at + _ENDING_SECONDS]
    return min((time for time in times if time is not None), default=None)


def _launch(state: ShardState, now: float) -> Decision:
    attempt = state.attempt + 1
    launched = replace(
        state,
        phase=Phase.STARTING,
        since=now,
        attempt=attempt,
        restarts=state.restarts + (state.attempt > 0),
        task=None,
        newest_task=-1,
        welcomed_at=None,
        due=None,
        forced_at=None,
    )
    return launched, (Launch(attempt=attempt),)


def _hello(state: ShardState, hello: Hello, now: float, policy: Policy) -> Decision:
    expected = state.phase in {Phase.STARTING, Phase.WAITING, Phase.RUNNING, Phase.STOPPING}
    if not expected or hello.attempt != state.attempt or hello.task <= state.newest_task or state.forced_at is not None:
        return state, (Refuse(),)
    # A second hello of the same attempt: Spark has started its task again by itself.
    again = state.welcomed_at is not None
    welcomed = replace(
        state,
        task=hello.task,
        newest_task=hello.task,
        heard_at=now,
        welcomed_at=now,
        restarts=state.restarts + again,
        last_error="the executor was lost, and Spark started the task again" if again else state.last_error,
    )
    if state.phase is Phase.STOPPING:
        return welcomed, (Welcome(task=hello.task), SendStop(grace_seconds=policy.grace_seconds))
    return replace(welcomed, phase=Phase.RUNNING, since=now), (Welcome(task=hello.task),)


def _without_line(state: ShardState, now: float) -> ShardState:
    if state.phase is Phase.RUNNING:
        return replace(state, phase=Phase.STARTING, since=now, task=None)
    return replace(state, task=None)


def _ended(state: ShardState, outcome: Outcome, now: float, policy: Policy, draw: Callable[[], float]) -> Decision:
    if state.phase in {Phase.NEW, Phase.BACKING_OFF}:
        return state, ()
    # The reason for ending it by force is in `last_error` already, and says more than Spark's report.
    ours = state.forced_at is not None and isinstance(outcome, TaskLost)
    error = None if ours else _error(outcome, stop_requested=state.phase is Phase.STOPPING)
    ended = replace(
        state, since=now, task=None, due=None, forced_at=None, outcome=outcome, last_error=error or state.last_error
    )
    hang_up = (CloseLine(),)
    match outcome:
        case Finished():
            return replace(ended, phase=Phase.FINISHED), hang_up
        case Fatal() | SparkLost():
            return replace(ended, phase=Phase.FAILED), hang_up
        case _ if state.phase is Phase.STOPPING:
            return replace(ended, phase=Phase.STOPPED), hang_up
        case _:
            healthy = state.welcomed_at is not None and now - state.welcomed_at >= policy.healthy_seconds
            failures = 1 if healthy else state.failures + 1
            ended = replace(ended, failures=failures)
            if policy.restarts is not None and failures > policy.restarts:
                return replace(ended, phase=Phase.FAILED), hang_up
            due = now + policy.back_off(failures, draw)
            return replace(ended, phase=Phase.BACKING_OFF, due=due), hang_up


def _stop(state: ShardState, now: float, policy: Policy) -> Decision:
    match state.phase:
        case Phase.NEW | Phase.BACKING_OFF:
            return replace(state, phase=Phase.STOPPED, since=now, due=None), ()
        case Phase.STOPPING:
            return state, ()
        case _ if state.task is None:
            # No line to send a stop on: the job waits for a slot, or the line was just lost.
            stopping = replace(state, phase=Phase.STOPPING, since=now, forced_at=now)
            return stopping, (ForceEnd(attempt=state.attempt),)
        case _:
            grace = policy.grace_seconds
            stopping = replace(state, phase=Phase.STOPPING, since=now, due=now + grace + _OVERDUE_SECONDS)
            return stopping, (SendStop(grace_seconds=grace),)


def _kill(state: ShardState, now: float) -> Decision:
    if state.phase in {Phase.NEW, Phase.BACKING_OFF}:
        return replace(state, phase=Phase.STOPPED, since=now, due=None), ()
    killed = replace(state, phase=Phase.STOPPING, task=None, forced_at=now, last_error="it was stopped at once")
    return killed, (CloseLine(), ForceEnd(attempt=state.attempt))


def _tick(state: ShardState, now: float, policy: Policy) -> Decision:
    match state.phase:
        case Phase.BACKING_OFF if state.due is not None and now >= state.due:
            return _launch(state, now)
        case Phase.STARTING if now - state.since >= policy.slot_seconds:
            state = replace(state, phase=Phase.WAITING, since=now)
            if state.welcomed_at is not None and state.forced_at is None:
                # The task lost its line long ago, and has neither ended nor been started again.
                ended = replace(state, forced_at=now, last_error="it lost its line and did not end")
                return ended, (ForceEnd(attempt=state.attempt),)
        case _:
            pass
    if state.forced_at is not None:
        if now - state.forced_at < _ENDING_SECONDS:
            return state, ()
        return replace(state, forced_at=now), (ForceEnd(attempt=state.attempt),)
    silent = state.task is not None and now - state.heard_at >= policy.silence_seconds
    overdue = state.phase is Phase.STOPPING and state.due is not None and now >= state.due
    if not silent and not overdue:
        return state, ()
    why = f"it was silent for {policy.silence_seconds:g} s" if silent else "it did not stop in time"
    return replace(state, forced_at=now, last_error=why), (ForceEnd(attempt=state.attempt),)


def _error(outcome: Outcome, *, stop_requested: bool) -> str | None:
    """Return the error to show to people, or None where the attempt ended as it should."""
    match outcome:
        case Transient(error=error) | Fatal(error=error):
            return str(error)
        case TaskLost(why=why) | SparkLost(why=why):
            return None if stop_requested else why
        case Stopped(why=why):
            return None if stop_requested else f"it stopped unasked: {why}"
        case Replaced():
            return "the driver refused it, because a newer task has replaced it"
        case _:
            return None
