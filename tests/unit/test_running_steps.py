"""Running steps and their ages."""

import pytest

from tests.set_clock import SetClock
from thresher.delivery.effects import Begin, ReadControl
from thresher.delivery.shard.running import step_name
from thresher.spark.worker.running_steps import RunningSteps


def test_a_step_ages_while_it_runs_and_then_vanishes() -> None:
    clock = SetClock()
    steps = RunningSteps(clock)
    assert steps.ages() == {}
    with steps.step("settle"):
        clock.now += 2
        with steps.step("read"):
            clock.now += 3
            assert steps.ages() == {"settle": 5, "read": 3}
        assert steps.ages() == {"settle": 5}
    assert steps.ages() == {}


def test_a_step_that_is_entered_again_is_young_again() -> None:
    clock = SetClock()
    steps = RunningSteps(clock)
    read = steps.step("read")
    for _ in range(3):
        with read:
            clock.now += 7
            assert steps.ages() == {"read": 7}
    assert steps.step("read") is read


def test_a_step_that_fails_has_ended() -> None:
    steps = RunningSteps(SetClock())
    with pytest.raises(ValueError, match="no"), steps.step("read"):
        raise ValueError("no")
    assert steps.ages() == {}


def test_an_effect_is_a_step_under_its_own_name() -> None:
    assert [step_name(effect) for effect in (ReadControl, Begin)] == ["read control", "begin"]
