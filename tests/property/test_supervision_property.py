"""The supervisor's decisions against an independent model, which keeps a log of events and looks back at it."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.examples import examples
from thresher.spark.driver.supervision import (
    AttemptEnded,
    CloseLine,
    Command,
    Event,
    ForceEnd,
    FrameReceived,
    Hello,
    KillRequested,
    Launch,
    LineClosed,
    Phase,
    Refuse,
    SendStop,
    ShardState,
    StartRequested,
    StopRequested,
    Tick,
    Welcome,
    decide,
    next_deadline,
)
from thresher.spark.outcome import (
    ErrorInfo,
    Fatal,
    Finished,
    Outcome,
    Replaced,
    SparkLost,
    Stopped,
    TaskLost,
    Transient,
)
from thresher.spark.policy import Policy

ERROR = ErrorInfo(kind="ValueError", message="a bad day")
FAILURES: list[Outcome] = [Transient(error=ERROR), TaskLost(why="killed"), Replaced(), Stopped(why="SIGTERM")]
FINAL: list[Outcome] = [Finished(), Fatal(error=ERROR), SparkLost(why="no JVM")]

policies = st.builds(
    Policy,
    back_off_seconds=st.sampled_from([0.1, 1.0]),
    back_off_most_seconds=st.sampled_from([1.0, 8.0]),
    healthy_seconds=st.sampled_from([5.0, 60.0]),
    restarts=st.sampled_from([None, 0, 1, 3]),
    grace_seconds=st.sampled_from([1.0, 30.0]),
    slot_seconds=st.sampled_from([2.0, 30.0]),
)


class Supervised(RuleBasedStateMachine):
    """Feeds events in any order, as Spark, the lines to tasks, operators and time may cause them."""

    @initialize(policy=policies, patience=st.integers(0, 35))
    def begin(self, policy: Policy, patience: int) -> None:
        self.policy = policy
        # The number of steps before the shard may end for good: most runs should be long.
        self.patience = patience
        self.now = 100.0
        self.state = ShardState()
        # The model's log of events: it looks back instead of keeping state.
        self.launches: list[float] = []
        self.ends: list[tuple[float, Outcome]] = []
        self.welcomes: list[tuple[int, int, float]] = []  # attempt, Spark's task, time
        self.heard = self.lost = 0.0
        self.stopped = self.over = self.killing = False
        self.asked_at: tuple[int, float] | None = None
        self.forced: list[tuple[int, float]] = []
        self.streak = 0
        self.not_before = 0.0
        self.hung_up = False
        self.send(StartRequested())
        assert len(self.launches) == 1

    def send(self, event: Event, draw: float = 0.5) -> tuple[Command, ...]:
        self.state, commands = decide(self.state, event, now=self.now, policy=self.policy, draw=lambda: draw)
        for command in commands:
            self.check(command)
        return commands

    def check(self, command: Command) -> None:
        match command:
            case Launch(attempt=attempt):
                assert len(self.launches) == len(self.ends), "the attempt before it has not ended"
                assert attempt == len(self.launches) + 1
                assert not self.stopped
                assert not self.over
                assert self.now >= self.not_before, "the back-off is not over"
                self.launches.append(self.now)
            case Welcome(task=task):
                assert self.in_flight
                assert task > self.newest, "an older task was let in"
            case ForceEnd(attempt=attempt):
                assert self.in_flight
                assert attempt == len(self.launches)
                assert self.reason_to_end, "an attempt was ended without a reason"
                self.forced.append((attempt, self.now))
            case SendStop(grace_seconds=grace):
                assert self.stopped
                assert grace == self.policy.grace_seconds
            case CloseLine() | Refuse():
                pass

    @property
    def out_of_patience(self) -> bool:
        self.patience -= 1
        return self.patience < 0

    @property
    def in_flight(self) -> bool:
        return len(self.launches) > len(self.ends)

    @property
    def line(self) -> int | None:
        """The task whose line is open, by the log."""
        if not self.in_flight or not self.welcomes or self.hung_up:
            return None
        attempt, task, _ = self.welcomes[-1]
        return task if attempt == len(self.launches) else None

    @property
    def newest(self) -> int:
        """The newest task of this attempt that was let in."""
        return max((task for attempt, task, _ in self.welcomes if attempt == len(self.launches)), default=-1)

    @property
    def silent(self) -> bool:
        return self.line is not None and self.now - self.heard >= self.policy.silence_seconds

    @property
    def overdue(self) -> bool:
        """Whether it was asked to stop and has exceeded its grace, by the log."""
        asked = self.asked_at is not None and self.asked_at[0] == len(self.launches)
        return asked and self.now >= self.asked_at[1] + self.policy.grace_seconds + 2.0  # type: ignore[index]

    @property
    def lineless(self) -> bool:
        """Whether the attempt lost its line, and has had none for longer than a task may wait for a slot."""
        had = any(attempt == len(self.launches) for attempt, _, _ in self.welcomes)
        return had and self.line is None and not self.stopped and self.now - self.lost >= self.policy.slot_seconds

    @property
    def reason_to_end(self) -> bool:
        again = self.was_forced and self.now - self.forced[-1][1] >= 5.0
        nobody_to_ask = self.stopped and self.line is None
        return self.silent or self.overdue or self.lineless or again or self.killing or nobody_to_ask

    @property
    def was_forced(self) -> bool:
        return bool(self.forced) and self.forced[-1][0] == len(self.launches)

    @rule(task=st.integers(1, 3))
    def proper_hello(self, task: int) -> None:
        self.hello(0, task)

    @rule(attempt=st.integers(-2, 0), task=st.integers(-2, 3))
    def any_hello(self, attempt: int, task: int) -> None:
        self.hello(attempt, task)

    def hello(self, attempt: int, task: int) -> None:
        number = len(self.launches) + attempt
        newest = self.newest
        commands = self.send(Hello(attempt=number, task=newest + task))
        welcome = self.in_flight and attempt == 0 and task > 0 and not self.was_forced and not self.over
        assert any(isinstance(command, Welcome) for command in commands) is welcome
        assert any(isinstance(command, Refuse) for command in commands) is not welcome
        if welcome:
            self.welcomes.append((number, newest + task, self.now))
            self.heard, self.hung_up = self.now, False
            assert any(isinstance(command, SendStop) for command in commands) is self.stopped
            if self.stopped and self.asked_at is None:
                self.asked_at = (len(self.launches), math.inf)

    @precondition(lambda self: self.line is not None)
    @rule()
    def beat(self) -> None:
        assert self.line is not None
        assert self.send(FrameReceived(task=self.line)) == ()
        self.heard = self.now

    @rule(task=st.integers(-2, 50))
    def beat_of_another(self, task: int) -> None:
        if task != self.line:
            before = self.state
            assert self.send(FrameReceived(task=task)) == ()
            assert self.state == before

    @precondition(lambda self: self.line is not None)
    @rule()
    def line_breaks(self) -> None:
        assert self.line is not None
        assert self.send(LineClosed(task=self.line)) == ()
        self.hung_up = True
        self.lost = self.now

    @precondition(lambda self: self.in_flight)
    @rule(outcome=st.sampled_from(FAILURES), draw=st.floats(0, 1))
    def fails(self, outcome: Outcome, draw: float) -> None:
        self.ends_now(outcome, draw)

    @precondition(lambda self: self.in_flight and self.out_of_patience)
    @rule(outcome=st.sampled_from(FINAL))
    def ends_for_good(self, outcome: Outcome) -> None:
        self.ends_now(outcome, 0.5)

    def ends_now(self, outcome: Outcome, draw: float) -> None:
        attempt = len(self.launches)
        welcomed = [when for number, _, when in self.welcomes if number == attempt]
        healthy = bool(welcomed) and self.now - welcomed[-1] >= self.policy.healthy_seconds
        self.ends.append((self.now, outcome))
        commands = self.send(AttemptEnded(attempt=attempt, outcome=outcome), draw)
        assert commands == (CloseLine(),)
        if outcome in FINAL or self.stopped:
            self.over = True
            expected = Phase.FINISHED if outcome in FINAL[:1] else Phase.FAILED if outcome in FINAL else Phase.STOPPED
            assert self.state.phase is expected
            return
        self.streak = 1 if healthy else self.streak + 1
        if self.policy.restarts is not None and self.streak > self.policy.restarts:
            self.over = True
            assert self.state.phase is Phase.FAILED
            return
        assert self.state.phase is Phase.BACKING_OFF
        longest = min(self.policy.back_off_most_seconds, self.policy.back_off_seconds * 2.0 ** (self.streak - 1))
        assert self.state.due is not None
        wait = self.state.due - self.now
        assert longest / 2 - 1e-9 <= wait <= longest + 1e-9
        assert math.isclose(wait, longest * (0.5 + draw / 2), abs_tol=1e-9)
        self.not_before = self.state.due

    @rule(older=st.integers(1, 3), outcome=st.sampled_from(FAILURES + FINAL))
    def an_older_attempt_ends(self, older: int, outcome: Outcome) -> None:
        before = self.state
        assert self.send(AttemptEnded(attempt=len(self.launches) - older, outcome=outcome)) == ()
        assert self.state == before

    @precondition(lambda self: self.out_of_patience)
    @rule()
    def stop(self) -> None:
        line, first = self.line, not self.stopped
        self.stopped = True
        commands = self.send(StopRequested())
        if not self.in_flight or self.over:
            assert commands == ()
            self.over = True
            assert self.state.phase.over
        elif first:
            assert [type(command) for command in commands] == [SendStop if line is not None else ForceEnd]
            if line is not None:
                self.asked_at = (len(self.launches), self.now)

    @precondition(lambda self: self.out_of_patience)
    @rule()
    def kill(self) -> None:
        self.stopped = self.killing = True
        commands = self.send(KillRequested())
        self.killing = False
        if self.in_flight and not self.over:
            assert [type(command) for command in commands] == [CloseLine, ForceEnd]
            self.hung_up = True
        else:
            assert commands == ()
            self.over = True

    @precondition(lambda self: self.line is not None and not self.over)
    @rule(seconds=st.integers(1, 70))
    def lives_on(self, seconds: int) -> None:
        """Let time pass with a task that sends a heartbeat every second."""
        for _ in range(seconds):
            if self.line is not None:
                self.beat()
            self.time_passes(1.0)

    @rule(seconds=st.sampled_from([0.0, 0.05, 0.5, 1.0, 3.0, 5.0, 10.0, 31.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        """Let time pass as in the loop: with a tick whenever one is due."""
        until = self.now + seconds
        for _ in range(100):
            due = next_deadline(self.state, self.policy)
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.tick()
        self.now = until
        self.tick()

    def tick(self) -> None:
        in_flight, forced = self.in_flight and not self.over, self.was_forced
        wrong = in_flight and not forced and (self.silent or self.overdue or self.lineless)
        again = in_flight and forced and self.now - self.forced[-1][1] >= 5.0
        commands = self.send(Tick())
        assert (ForceEnd(attempt=len(self.launches)) in commands) is (wrong or again)
        if in_flight and not self.stopped and self.line is None:
            waited = self.now - max(self.launches[-1], self.lost)
            assert (self.state.phase is Phase.WAITING) is (waited >= self.policy.slot_seconds)

    @invariant()
    def phases_are_what_the_log_says(self) -> None:
        if not hasattr(self, "state"):
            return
        assert self.state.attempt == len(self.launches)
        assert self.state.phase.over is self.over
        if self.over:
            assert next_deadline(self.state, self.policy) is None or not self.in_flight
            return
        if self.in_flight:
            assert self.state.phase in {Phase.STARTING, Phase.WAITING, Phase.RUNNING, Phase.STOPPING}
            assert (self.state.phase is Phase.STOPPING) is self.stopped
            if not self.stopped:
                assert (self.state.phase is Phase.RUNNING) is (self.line is not None)
        else:
            assert self.state.phase is Phase.BACKING_OFF
            assert self.now <= self.not_before or next_deadline(self.state, self.policy) == self.not_before

    @invariant()
    def a_stop_always_gets_somewhere(self) -> None:
        """After a stop, an attempt in flight always has a next deadline: the driver never waits for a task for ever."""
        if hasattr(self, "state") and self.in_flight and self.stopped and not self.over:
            assert next_deadline(self.state, self.policy) is not None


TestSupervision = Supervised.TestCase
TestSupervision.settings = settings(max_examples=examples(250), stateful_step_count=50, deadline=None)
