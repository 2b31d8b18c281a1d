import threading
from typing import Any

import pytest

from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.spark.problem import PipelineInvalid

READ = Step(function="package.module:read")


def pipeline(**changes: Any) -> Pipeline:
    return Pipeline(**{"name": "orders", "shards": 2, "steps": (READ,), **changes})


def test_a_pipeline_that_can_run_is_accepted() -> None:
    assert pipeline(steps=(READ, Step(function="m:Class.method", config={"a": 1}))).shards == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"name": ""}, "name ''"),
        ({"name": "a b"}, "name 'a b'"),
        ({"name": "-a"}, "name '-a'"),
        ({"name": "a" * 101}, "name 'aaa"),
        ({"name": 7}, "name 7"),
        ({"shards": 0}, "shards 0"),
        ({"shards": -1}, "shards -1"),
        ({"shards": 1025}, "shards 1025"),
        ({"shards": True}, "shards True"),
        ({"shards": "2"}, "shards '2'"),
        ({"steps": ()}, "there are none"),
        ({"steps": (Step(function="read"),)}, "step 1, function 'read': write it as package.module:function"),
        ({"steps": (READ, Step(function="a:b:c"))}, "step 2, function 'a:b:c'"),
        ({"steps": (Step(function="a-b:c"),)}, "'a-b:c'"),
        ({"steps": (Step(function=READ),)}, "step 1, function Step"),  # type: ignore[arg-type]
        ({"steps": (Step(function="a:b", config=7),)}, "config: a int is not a mapping"),  # type: ignore[arg-type]
        ({"steps": (Step(function="a:b", config={"lock": threading.Lock()}),)}, "cannot be sent to the workers"),
    ],
)
def test_an_impossible_pipeline_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PipelineInvalid) as refused:
        pipeline(**changes)
    assert reason in str(refused.value)


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(PipelineInvalid, match=r"name .*; shards .*; steps"):
        pipeline(name="", shards=0, steps=())


def test_configuration_is_never_shown() -> None:
    secret = Step(function="a:b", config={"password": "hunter2"})
    assert "hunter2" not in repr(pipeline(steps=(secret,)))
    with pytest.raises(PipelineInvalid) as refused:
        pipeline(steps=(Step(function="ab", config={"password": "hunter2", "lock": threading.Lock()}),))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"grace_seconds": 0}, "grace_seconds is 0"),
        ({"grace_seconds": -1.0}, "grace_seconds is -1.0"),
        ({"grace_seconds": float("nan")}, "grace_seconds is nan"),
        ({"grace_seconds": float("inf")}, "grace_seconds is inf"),
        ({"grace_seconds": "5"}, "grace_seconds is '5'"),
        ({"beat_seconds": True}, "beat_seconds is True"),
        ({"restarts": -1}, "restarts is -1"),
        ({"restarts": 1.5}, "restarts is 1.5"),
        ({"memory_bytes": 1000}, "memory_bytes is 1000"),
        ({"back_off_seconds": 60.0}, "back_off_most_seconds is less than back_off_seconds"),
        ({"silence_seconds": 1.5}, "silence_seconds is less than two beats"),
        ({"deaf_seconds": 1.5}, "deaf_seconds is less than two beats"),
    ],
)
def test_an_impossible_policy_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(PipelineInvalid) as refused:
        Policy(**changes)
    assert reason in str(refused.value)


def test_the_back_off_grows_to_its_limit_with_jitter() -> None:
    policy = Policy(back_off_seconds=0.2, back_off_most_seconds=30.0)
    assert [policy.back_off(failures, lambda: 1.0) for failures in (1, 2, 3)] == [0.2, 0.4, 0.8]
    assert policy.back_off(3, lambda: 0.0) == 0.4
    assert policy.back_off(10_000, lambda: 1.0) == 30.0
