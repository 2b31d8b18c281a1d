"""Supervision of a shard, step by step. The property test covers random courses."""

from dataclasses import dataclass, field

from thresher.spark.driver.supervision import (
    AttemptEnded,
    CloseLine,
    Command,
    Event,
    ForceEnd,
    FrameReceived,
    Hello,
    Launch,
    LineClosed,
    Phase,
    SendStop,
    ShardState,
    StartRequested,
    StopRequested,
    Tick,
    Welcome,
    decide,
)
from thresher.spark.outcome import ErrorInfo, Finished, Outcome, Stopped, TaskLost, Transient
from thresher.spark.policy import Policy

FAILURE = Transient(error=ErrorInfo(kind="ValueError", message="a bad day"))


@dataclass
class Life:
    """A shard with the test's own clock. Every random draw is the largest."""

    policy: Policy = field(default_factory=Policy)
    state: ShardState = field(default_factory=ShardState)
    now: float = 100.0

    def at(self, phase: Phase) -> bool:
        return self.state.phase is phase

    def send(self, event: Event, after: float = 0.0) -> list[Command]:
        self.now += after
        self.state, commands = decide(self.state, event, now=self.now, policy=self.policy, draw=lambda: 1.0)
        return list(commands)

    def run(self) -> None:
        """Start the shard, and let its task call."""
        self.send(StartRequested())
        self.send(Hello(attempt=1, task=10))

    def end(self, outcome: Outcome, after: float = 0.0) -> list[Command]:
        return self.send(AttemptEnded(attempt=self.state.attempt, outcome=outcome), after)

    def live(self, seconds: int) -> list[Command]:
        """Send a heartbeat every second."""
        commands = []
        for _ in range(seconds):
            commands += self.send(FrameReceived(task=self.state.task or 0), 1.0)
            commands += self.send(Tick())
        return commands


def test_a_shard_is_launched_welcomed_and_finished() -> None:
    life = Life()
    assert life.send(StartRequested()) == [Launch(attempt=1)]
    assert life.at(Phase.STARTING)
    assert life.send(Hello(attempt=1, task=10)) == [Welcome(task=10)]
    assert life.at(Phase.RUNNING)
    assert life.end(Finished()) == [CloseLine()]
    assert (life.state.phase, life.state.restarts) == (Phase.FINISHED, 0)


def test_back_offs_double_and_start_over_after_a_healthy_attempt() -> None:
    life = Life()
    life.run()
    waits = []
    for healthy in (False, False, False, True, False):
        if healthy:
            assert life.live(60) == []
        life.end(FAILURE)
        waits.append(round((life.state.due or 0) - life.now, 3))
        assert life.send(Tick(), waits[-1] + 0.001) == [Launch(attempt=life.state.attempt)]
        life.send(Hello(attempt=life.state.attempt, task=10))
    assert waits == [0.2, 0.4, 0.8, 0.2, 0.4]
    assert life.state.restarts == 5


def test_a_shard_has_failed_when_its_restarts_are_used_up() -> None:
    life = Life(Policy(restarts=1))
    life.run()
    life.end(FAILURE)
    life.send(Tick(), 60)
    life.end(FAILURE)
    assert (life.state.phase, life.state.restarts) == (Phase.FAILED, 1)
    assert life.state.last_error == "ValueError: a bad day"


def test_a_task_that_does_not_stop_is_killed_repeatedly() -> None:
    life = Life(Policy(grace_seconds=4.0))
    life.run()
    assert life.send(StopRequested()) == [SendStop(grace_seconds=4.0)]
    assert life.live(5) == []
    assert life.live(1) == [ForceEnd(attempt=1)]
    assert life.live(4) == []
    assert life.live(1) == [ForceEnd(attempt=1)]
    life.end(TaskLost(why="killed"))
    assert life.at(Phase.STOPPED)
    assert life.state.last_error == "it did not stop in time"


def test_a_silent_task_is_ended_and_its_shard_launched_again() -> None:
    life = Life()
    life.run()
    assert life.live(100) == []
    assert life.send(Tick(), 2.9) == []
    assert life.send(Tick(), 0.1) == [ForceEnd(attempt=1)]
    life.end(TaskLost(why="Python worker exited unexpectedly"), 0.5)
    assert (life.state.phase, life.state.last_error) == (Phase.BACKING_OFF, "it was silent for 3 s")


def test_a_task_restarted_by_spark_counts_as_a_restart() -> None:
    life = Life()
    life.run()
    life.send(LineClosed(task=10))
    assert life.at(Phase.STARTING)
    assert life.send(Hello(attempt=1, task=11), 2.0) == [Welcome(task=11)]
    assert (life.state.phase, life.state.attempt, life.state.restarts) == (Phase.RUNNING, 1, 1)
    assert "Spark started the task again" in (life.state.last_error or "")


def test_a_task_that_has_not_called_waits_for_a_slot() -> None:
    life = Life()
    life.send(StartRequested())
    life.send(Tick(), 29.9)
    assert life.at(Phase.STARTING)
    life.send(Tick(), 0.1)
    assert life.at(Phase.WAITING)
    life.send(Hello(attempt=1, task=10))
    assert life.at(Phase.RUNNING)


def test_a_shard_that_stops_unasked_is_launched_again() -> None:
    life = Life()
    life.run()
    life.end(Stopped(why="SIGTERM"))
    assert (life.state.phase, life.state.last_error) == (Phase.BACKING_OFF, "it stopped unasked: SIGTERM")


def test_a_task_that_lost_its_line_is_ended() -> None:
    life = Life()
    life.run()
    life.send(LineClosed(task=10))
    assert life.send(Tick(), 29.9) == []
    assert life.send(Tick(), 0.1) == [ForceEnd(attempt=1)]
    life.end(TaskLost(why="cancelled"))
    assert (life.state.phase, life.state.last_error) == (Phase.BACKING_OFF, "it lost its line and did not end")
