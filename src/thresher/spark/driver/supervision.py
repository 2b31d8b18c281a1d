"""Decides what becomes of a shard: a pure function from what is known and what happened to what is known and to do.

The promises, which `tests/property/test_supervision_property.py` holds against a model:
1. An attempt is launched only when the one before it has ended in Spark's eyes; attempts are numbered from 1.
2. After a stop, a fatal outcome, the end of the source or the end of Spark nothing is launched again.
3. A failed attempt is followed by a back-off that grows with the failures in a row and starts over after a healthy
   attempt; with a limit on restarts, the shard has failed once the limit is used up.
4. A caller is welcomed only as the newest: the running attempt, and of Spark's tasks for it none older than the last.
5. A silent task, one that does not stop in time, and one that lost its line and does not end is ended; if that does
   not help, it is ended again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from thresher.spark.outcome import Fatal, Finished, Gone, Lost, Outcome, Replaced, Stopped, Transient
from thresher.spark.policy import Policy

# What Spark may take to end a task before it is asked once more, and what a stopping task has beyond its grace.
_ENDING_SECONDS = 5.0
_OVERDUE_SECONDS = 2.0


class Phase(StrEnum):
    """Where a shard is. The last three are for good."""

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
        """Whether nothing will happen to the shard any more."""
        return self in {Phase.FINISHED, Phase.STOPPED, Phase.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Run the shard for the first time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A task called. `task` is Spark's number: Spark may start an attempt's task again by itself."""

    attempt: int
    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The welcomed task said something."""

    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HungUp:
    """The line of a task is gone; the attempt may still run for a moment, or be started again by Spark."""

    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The attempt has ended in Spark's eyes."""

    attempt: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """Stop in good order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillAsked:
    """Stop at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed."""


Event = Begin | Hello | Heard | HungUp | Ended | StopAsked | KillAsked | Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start this attempt as a Spark job."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Let the caller in, and end whoever had the line before."""

    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Tell the caller that it was replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskStop:
    """Tell the task to finish its batch."""

    grace_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """End the attempt by force: the task's process where it is ours to kill, Spark's job otherwise."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """Kill whoever still has a line: its attempt is over."""


Command = Launch | Welcome | Refuse | AskStop | End | HangUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """All that is known of a shard. Times are the driver's monotonic seconds."""

    phase: Phase = Phase.NEW
    since: float = 0.0
    attempt: int = 0
    # Spark's number of the task that has the line, and of the newest of this attempt that ever had it.
    task: int | None = None
    newest: int = -1
    heard: float = 0.0
    # When the running task was welcomed.
    welcomed: float | None = None
    # Failures in a row, and all restarts so far.
    failures: int = 0
    restarts: int = 0
    last_error: str | None = None
    outcome: Outcome | None = None
    # When the back-off is over, or the stopping task is overdue.
    due: float | None = None
    # When the attempt was last told to end by force.
    ended_at: float | None = None


Decision = tuple[Supervision, tuple[Command, ...]]


def decide(known: Supervision, event: Event, *, now: float, policy: Policy, draw: Callable[[], float]) -> Decision:
    """Return what is known now, and what to do. `draw` gives a random number from 0 to 1."""
    if known.phase.over:
        return known, (Refuse(),) if isinstance(event, Hello) else ()
    nothing: Decision = known, ()
    match event:
        case Begin():
            decision = _launch(known, now) if known.phase is Phase.NEW else nothing
        case Hello():
            decision = _hello(known, event, now, policy)
        case Heard(task=task):
            decision = (replace(known, heard=now), ()) if task == known.task else nothing
        case HungUp(task=task):
            decision = (_without_line(known, now), ()) if task == known.task else nothing
        case Ended(attempt=attempt, outcome=outcome):
            decision = _ended(known, outcome, now, policy, draw) if attempt == known.attempt else nothing
        case StopAsked():
            decision = _stop(known, now, policy)
        case KillAsked():
            decision = _kill(known, now)
        case Tick():
            decision = _tick(known, now, policy)
    return decision


def next_look(known: Supervision, policy: Policy) -> float | None:
    """Return when the next tick can change something."""
    times = [known.due]
    if known.phase is Phase.STARTING:
        times.append(known.since + policy.slot_seconds)
    if known.task is not None:
        times.append(known.heard + policy.silence_seconds)
    if known.ended_at is not None:
        times = [known.ended_at + _ENDING_SECONDS]
    return min((time for time in times if time is not None), default=None)


def _launch(known: Supervision, now: float) -> Decision:
    attempt = known.attempt + 1
    launched = replace(
        known,
        phase=Phase.STARTING,
        since=now,
        attempt=attempt,
        restarts=known.restarts + (known.attempt > 0),
        task=None,
        newest=-1,
        welcomed=None,
        due=None,
        ended_at=None,
    )
    return launched, (Launch(attempt=attempt),)


def _hello(known: Supervision, hello: Hello, now: float, policy: Policy) -> Decision:
    expected = known.phase in {Phase.STARTING, Phase.WAITING, Phase.RUNNING, Phase.STOPPING}
    if not expected or hello.attempt != known.attempt or hello.task <= known.newest or known.ended_at is not None:
        return known, (Refuse(),)
    # An attempt that called before was started again by Spark, without asking us.
    again = known.welcomed is not None
    welcomed = replace(
        known,
        task=hello.task,
        newest=hello.task,
        heard=now,
        welcomed=now,
        restarts=known.restarts + again,
        last_error="the executor was lost, and Spark started the task again" if again else known.last_error,
    )
    if known.phase is Phase.STOPPING:
        return welcomed, (Welcome(task=hello.task), AskStop(grace_seconds=policy.grace_seconds))
    return replace(welcomed, phase=Phase.RUNNING, since=now), (Welcome(task=hello.task),)


def _without_line(known: Supervision, now: float) -> Supervision:
    if known.phase is Phase.RUNNING:
        return replace(known, phase=Phase.STARTING, since=now, task=None)
    return replace(known, task=None)


def _ended(known: Supervision, outcome: Outcome, now: float, policy: Policy, draw: Callable[[], float]) -> Decision:
    if known.phase in {Phase.NEW, Phase.BACKING_OFF}:
        return known, ()
    # Where we ended it, we know better than Spark why.
    ours = known.ended_at is not None and isinstance(outcome, Lost)
    error = None if ours else _error(outcome, asked=known.phase is Phase.STOPPING)
    ended = replace(
        known, since=now, task=None, due=None, ended_at=None, outcome=outcome, last_error=error or known.last_error
    )
    hang_up = (HangUp(),)
    match outcome:
        case Finished():
            return replace(ended, phase=Phase.FINISHED), hang_up
        case Fatal() | Gone():
            return replace(ended, phase=Phase.FAILED), hang_up
        case _ if known.phase is Phase.STOPPING:
            return replace(ended, phase=Phase.STOPPED), hang_up
        case _:
            healthy = known.welcomed is not None and now - known.welcomed >= policy.healthy_seconds
            failures = 1 if healthy else known.failures + 1
            ended = replace(ended, failures=failures)
            if policy.restarts is not None and failures > policy.restarts:
                return replace(ended, phase=Phase.FAILED), hang_up
            due = now + policy.back_off(failures, draw)
            return replace(ended, phase=Phase.BACKING_OFF, due=due), hang_up


def _stop(known: Supervision, now: float, policy: Policy) -> Decision:
    match known.phase:
        case Phase.NEW | Phase.BACKING_OFF:
            return replace(known, phase=Phase.STOPPED, since=now, due=None), ()
        case Phase.STOPPING:
            return known, ()
        case _ if known.task is None:
            # Nobody to ask: it waits for a slot, or has just lost its line.
            stopping = replace(known, phase=Phase.STOPPING, since=now, ended_at=now)
            return stopping, (End(attempt=known.attempt),)
        case _:
            grace = policy.grace_seconds
            stopping = replace(known, phase=Phase.STOPPING, since=now, due=now + grace + _OVERDUE_SECONDS)
            return stopping, (AskStop(grace_seconds=grace),)


def _kill(known: Supervision, now: float) -> Decision:
    if known.phase in {Phase.NEW, Phase.BACKING_OFF}:
        return replace(known, phase=Phase.STOPPED, since=now, due=None), ()
    killed = replace(known, phase=Phase.STOPPING, task=None, ended_at=now, last_error="it was stopped at once")
    return killed, (HangUp(), End(attempt=known.attempt))


def _tick(known: Supervision, now: float, policy: Policy) -> Decision:
    match known.phase:
        case Phase.BACKING_OFF if known.due is not None and now >= known.due:
            return _launch(known, now)
        case Phase.STARTING if now - known.since >= policy.slot_seconds:
            known = replace(known, phase=Phase.WAITING, since=now)
            if known.welcomed is not None and known.ended_at is None:
                # It lost its line long ago and has neither ended nor been started again: something keeps it.
                ended = replace(known, ended_at=now, last_error="it lost its line and did not end")
                return ended, (End(attempt=known.attempt),)
        case _:
            pass
    if known.ended_at is not None:
        if now - known.ended_at < _ENDING_SECONDS:
            return known, ()
        return replace(known, ended_at=now), (End(attempt=known.attempt),)
    silent = known.task is not None and now - known.heard >= policy.silence_seconds
    overdue = known.phase is Phase.STOPPING and known.due is not None and now >= known.due
    if not silent and not overdue:
        return known, ()
    why = f"it was silent for {policy.silence_seconds:g} s" if silent else "it did not stop in time"
    return replace(known, ended_at=now, last_error=why), (End(attempt=known.attempt),)


def _error(outcome: Outcome, *, asked: bool) -> str | None:
    """Return what a person would want to know of it, or None where all went as it should."""
    match outcome:
        case Transient(trouble=trouble) | Fatal(trouble=trouble):
            return str(trouble)
        case Lost(why=why) | Gone(why=why):
            return None if asked else why
        case Stopped(why=why):
            return None if asked else f"it stopped unasked: {why}"
        case Replaced():
            return "it was refused as replaced"
        case _:
            return None
