"""When a leader gives up its leadership, and when it may lead again."""

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processes import eventually
from thresher.core.errors import Trouble
from thresher.service.health import ServerHealth, ShardHealth
from thresher.service.leading import Leading
from thresher.service.servers.reach import Reach
from thresher.service.step_down import LeadershipPolicy, LeaderStall, PendingWorkQuery, failing, stalled

UP = ShardHealth(shard=0, state="running", working=True)
RECOVERING = ShardHealth(shard=0, state="running", working=False)
DOWN = ShardHealth(shard=1, state="backing off", working=False, failures=1, last_error="no coordinator")
SOON_SECONDS = 60.0


@pytest.mark.parametrize(
    ("waiting_for", "shards", "why"),
    [
        (None, (), None),
        (None, (UP, DOWN), None),
        (None, (RECOVERING, DOWN), None),
        (None, (DOWN,), "no shard works: no coordinator"),
        ("the database failed", (), "it cannot take over: the database failed"),
    ],
)
def test_a_leader_fails_while_take_over_or_shards_fail(
    waiting_for: str | None, shards: tuple[ShardHealth, ...], why: str | None
) -> None:
    assert failing(waiting_for, shards) == why


@given(
    st.booleans(),
    st.integers(0, 3),
    st.floats(0, 100),
    st.sampled_from([None, "no shard works"]),
    st.floats(0, 100),
    st.floats(0, 100),
)
def test_only_a_leader_long_without_progress_is_stalled(
    up: bool, failures: int, seconds: float, failing_for: str | None, failing_seconds: float, idle: float
) -> None:
    server = ServerHealth(up=up, failures=0 if up else failures, seconds=seconds, text="why")
    found = stalled(
        {"good": ServerHealth(up=True), "broker": server},
        failing_for=failing_for,
        failing_seconds=failing_seconds,
        idle_seconds=idle,
        limit_seconds=30.0,
    )
    if idle < 30:
        # There was progress, or the leadership is too young to be at fault.
        assert found is None
    elif not up and failures > 0 and seconds >= 30:
        assert found == LeaderStall(why=f"its broker was not reached for {seconds:.0f} s: why", server_lost=True)
    elif failing_for is not None and failing_seconds >= 30:
        assert found is not None
        assert not found.server_lost
    else:
        assert found is None


class Led:
    """A leadership, as far as the check for stalls needs it."""

    def __init__(self) -> None:
        self.waiting_for: str | None = None
        self.take_over = SimpleNamespace(failures=0)
        self.now = 0.0
        self.reach = Reach(["database", "broker"], clock=lambda: self.now)
        self.reach.all_succeeded()
        self.shards: tuple[ShardHealth, ...] = (UP,)
        self.waits: bool | Exception | None = True
        self.asked = self.done = 0

    def shard_health(self) -> tuple[ShardHealth, ...]:
        return self.shards

    def work_waits(self) -> bool | None:
        self.asked += 1
        if isinstance(self.waits, Exception):
            raise self.waits
        return self.waits

    def policy(self, **options: Any) -> LeadershipPolicy:
        policy = LeadershipPolicy(
            self.reach, lambda: self.done, **{"step_down_seconds": 30.0, "alone": False, **options}
        )
        policy.begin(cast("Leading", self), self.now)
        return policy

    def steps_down(self, policy: LeadershipPolicy, now: float) -> LeaderStall | None:
        """Check twice: the second check has the answer to the first one's question."""
        self.now = now
        before = self.asked
        found = policy.stall(now)
        if found is None and self.asked > before:
            eventually(lambda: not [each for each in threading.enumerate() if each.name == "work-waits"], SOON_SECONDS)
            found = policy.stall(now + 1.0)
        return found


def lose(led: Led, server: str = "broker") -> None:
    led.reach.failed(server, Trouble("it hung up"))


@pytest.mark.parametrize("waits", [True, None, Trouble("nobody knows")])
def test_a_leader_that_lost_a_server_steps_down(waits: bool | Exception | None) -> None:
    led = Led()
    policy = led.policy()
    led.waits = waits
    lose(led)
    assert led.steps_down(policy, 29) is None
    assert led.asked == 0
    stall = led.steps_down(policy, 30)
    assert stall is not None
    assert stall.why == "its broker was not reached for 30 s: it hung up"


def test_an_idle_leader_keeps_leading_and_asks_again() -> None:
    led = Led()
    policy = led.policy()
    led.waits = False
    lose(led)
    assert led.steps_down(policy, 30) is None
    assert led.steps_down(policy, 33) is None
    assert led.asked == 1
    led.waits = True
    assert led.steps_down(policy, 40) is not None


def test_a_question_without_an_answer_counts_as_work() -> None:
    answer = threading.Event()

    def ask() -> bool:
        answer.wait(SOON_SECONDS)
        return False

    inquiry = PendingWorkQuery(ask)
    assert inquiry.may_wait(100.0) is None
    assert inquiry.may_wait(104.0) is None
    assert inquiry.may_wait(105.0) is True
    answer.set()


def test_a_server_that_comes_back_ends_the_stall() -> None:
    led = Led()
    policy = led.policy()
    lose(led)
    led.now = 25
    led.reach.succeeded("broker")
    lose(led)
    assert led.steps_down(policy, 50) is None
    assert led.steps_down(policy, 55) is not None


def test_a_leader_that_makes_progress_keeps_leading() -> None:
    led = Led()
    policy = led.policy()
    lose(led)
    led.done = 1
    assert led.steps_down(policy, 29) is None
    assert led.steps_down(policy, 58) is None
    assert led.steps_down(policy, 59) is not None


def test_a_stall_lasts_while_all_shards_fail() -> None:
    led = Led()
    policy = led.policy()
    led.shards = (DOWN,)
    assert led.steps_down(policy, 10) is None
    assert led.steps_down(policy, 39) is None
    led.shards = (UP,)
    assert led.steps_down(policy, 40) is None
    led.shards = (DOWN,)
    assert led.steps_down(policy, 41) is None
    assert led.steps_down(policy, 70) is None
    led.shards = (replace(DOWN, failures=2),)
    stall = led.steps_down(policy, 72)
    assert stall is not None
    assert "no coordinator" in stall.why


def test_shards_that_recover_after_an_old_failure_are_no_stall() -> None:
    led = Led()
    policy = led.policy()
    led.shards = (replace(DOWN, state="running"),)
    for now in range(10, 100, 10):
        assert led.steps_down(policy, now) is None


def test_only_a_take_over_that_keeps_failing_is_a_stall() -> None:
    led = Led()
    policy = led.policy()
    led.shards, led.waiting_for, led.take_over.failures = (), "one answer was late", 1
    for now in range(0, 100, 10):
        assert led.steps_down(policy, now) is None
    led.take_over.failures = 2
    assert led.steps_down(policy, 101) is not None


def test_a_successful_probe_does_not_hide_unanswered_looks() -> None:
    led = Led()
    policy = led.policy()
    found = None
    for now in range(1, 60):
        led.now = now
        if now % 13 == 12:
            led.reach.failed("database", Trouble("no answer in 12 s"), check=True)
        led.reach.succeeded("database", probe=True)
        found = found or led.steps_down(policy, now)
    assert found is not None
    led.reach.checks_ended()
    led.reach.succeeded("database", probe=True)
    assert led.reach.health()["database"].up


def test_without_an_election_nobody_steps_down() -> None:
    led = Led()
    policy = led.policy(alone=True)
    lose(led)
    assert led.steps_down(policy, 1000) is None


def test_a_cool_down_ends_when_the_lost_server_answers() -> None:
    led = Led()
    policy = led.policy()
    lose(led)
    for _ in range(3):
        policy.stepped_down(LeaderStall(why="w", server_lost=True), lasted=31, now=100)
    assert (policy.may_lead(103.9), policy.may_lead(104)) == (False, True)
    led.reach.succeeded("broker")
    assert policy.may_lead(100)


def test_a_process_elected_during_cool_down_gives_leadership_back() -> None:
    policy = Led().policy()
    policy.superseded(lasted=1, now=100)
    given_back = [now for now in range(100, 120) if policy.gives_back(now)]
    assert given_back == [105, 110, 115]


def test_a_cool_down_for_another_reason_is_not_shortened() -> None:
    led = Led()
    policy = led.policy()
    policy.stepped_down(LeaderStall(why="w", server_lost=False), lasted=31, now=100)
    assert (policy.may_lead(100.9), policy.may_lead(101)) == (False, True)
    policy.superseded(lasted=1, now=200)
    assert (policy.may_lead(201.9), policy.may_lead(202)) == (False, True)


def test_a_healthy_minute_of_leadership_resets_the_cool_down() -> None:
    led = Led()
    policy = led.policy()
    for lasted in (31, 31, 31, 91):
        policy.stepped_down(LeaderStall(why="w", server_lost=False), lasted=lasted, now=100)
    assert policy.may_lead(101)
