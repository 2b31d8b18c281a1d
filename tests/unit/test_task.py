"""A task before it has a line. The rest of its life is tested with real workers."""

import json
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from thresher.spark.line_key import LineKey
from thresher.spark.outcome import Fatal, Transient, decode
from thresher.spark.pipeline import Step
from thresher.spark.policy import Policy
from thresher.spark.problem import LineUnreachable, VersionMismatch
from thresher.spark.task_spec import DriverAddress, PackedTaskSpec, TaskSpec
from thresher.spark.worker.shard import Figures
from thresher.spark.worker.task import Task, run_shard


def spec(port: int) -> TaskSpec:
    return TaskSpec(
        pipeline="test",
        shard=0,
        shards=1,
        attempt=1,
        steps=pickle.dumps((Step(function="sys:exit"),)),
        policy=Policy(),
        address=DriverAddress(place=("127.0.0.1", port), key=LineKey(b"secret")),
    )


def test_a_task_spec_of_another_version_is_not_unpacked() -> None:
    (payload,) = Task(PackedTaskSpec(version="0.0.0", payload=b"whatever that version packed"))([])
    outcome, _ = decode(payload)
    assert isinstance(outcome, Fatal)
    assert isinstance(outcome.error.exception, VersionMismatch)
    assert "the driver 0.0.0: give the executors the driver's environment" in outcome.error.message


def test_an_unreachable_driver_is_named_and_worth_a_retry() -> None:
    # A port that is bound here, and on which no process listens.
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        outcome = run_shard(spec(port), Figures(), task=0)
    assert isinstance(outcome, Transient)
    assert isinstance(outcome.error.exception, LineUnreachable)
    assert f"127.0.0.1:{port}" in outcome.error.message
    assert "spark.driver.host" in outcome.error.message


def test_the_key_is_never_shown() -> None:
    assert "secret" not in repr(spec(1))
    assert "secret" not in repr(PackedTaskSpec.pack(spec(1)))


# A process group leader, as Spark's daemon is, and its forked child, which prints its hello.
HELLO = """
import json, os, sys, time
from tests.unit.test_task import spec
from thresher.spark.worker.line import Line
from thresher.spark.worker.shard import Figures
leader = os.getpid()
if os.fork():
    if sys.argv[1] == "lives":
        os.wait()
    os._exit(0)
while sys.argv[1] == "died" and os.getppid() == leader:
    time.sleep(0.01)
parent = Line(spec(1), Figures(), task=0).hello()["parent"]
print(json.dumps({"leader": leader, "parent": parent[0] if parent else None}), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("leader", ["lives", "died"])
def test_a_worker_names_only_its_daemon_as_parent(leader: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELLO, leader],
        cwd=Path(__file__).parents[2], start_new_session=True, capture_output=True, timeout=150, check=True,
    )  # fmt: skip
    said = json.loads(done.stdout)
    assert said["parent"] == (said["leader"] if leader == "lives" else None)
