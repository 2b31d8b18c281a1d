"""What a task does before it has a line; everything after that is tested in real workers."""

import pickle
import socket

from thresher.spark.outcome import Fatal, Transient, decode
from thresher.spark.pipeline import Step
from thresher.spark.policy import Policy
from thresher.spark.problem import LineUnreachable, VersionMismatch
from thresher.spark.shard import Figures
from thresher.spark.spec import Address, Parcel, Spec
from thresher.spark.task import Task, run_shard


def spec(port: int) -> Spec:
    return Spec(
        pipeline="test",
        shard=0,
        shards=1,
        attempt=1,
        steps=pickle.dumps((Step(function="sys:exit"),)),
        policy=Policy(),
        address=Address(host="127.0.0.1", port=port, token="secret"),
    )


def test_a_parcel_of_another_version_is_not_opened() -> None:
    (payload,) = Task(Parcel(version="0.0.0", payload=b"whatever that version packed"))([])
    outcome, _ = decode(payload)
    assert isinstance(outcome, Fatal)
    assert isinstance(outcome.trouble.error, VersionMismatch)
    assert "the driver 0.0.0: give the executors the driver's environment" in outcome.trouble.message


def test_a_driver_that_cannot_be_reached_is_worth_another_attempt_and_says_where_it_was_sought() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    outcome = run_shard(spec(port), Figures(), task=0)
    assert isinstance(outcome, Transient)
    assert isinstance(outcome.trouble.error, LineUnreachable)
    assert f"127.0.0.1:{port}" in outcome.trouble.message
    assert "spark.driver.host" in outcome.trouble.message


def test_the_token_is_never_shown() -> None:
    assert "secret" not in repr(spec(1))
    assert "secret" not in repr(Parcel.of(spec(1)))
