"""A task before it has a line. The rest of its life is tested with real workers."""

import importlib
import json
import pickle
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thresher.config.function_paths import search_beside
from thresher.core import trusted_modules
from thresher.spark.driver import shard_jobs
from thresher.spark.line_key import LineKey
from thresher.spark.outcome import Fatal, Transient, decode
from thresher.spark.pipeline import Pipeline, Step
from thresher.spark.policy import Policy
from thresher.spark.problem import LineUnreachable, VersionMismatch
from thresher.spark.task_spec import DriverAddress, PackedTaskSpec, TaskSpec
from thresher.spark.worker.shard import Figures
from thresher.spark.worker.task import Task, run_shard


def spec(port: int, **more: Any) -> TaskSpec:
    return TaskSpec(
        **more,
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


def test_a_worker_imports_no_module_that_others_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for places, name in ((sys, "path"), (sys, "meta_path")):
        monkeypatch.setattr(places, name, [*getattr(places, name)])
    monkeypatch.setattr(trusted_modules, "_judge", type(trusted_modules._judge)())
    package = tmp_path / "planted_package"
    package.mkdir()
    (package / "mine.py").touch()
    (package / "planted.py").write_text("raise SystemExit('PLANTED')\n")
    (package / "planted.py").chmod(0o666)
    run_shard(spec(1, path=(str(tmp_path),), judged=(str(tmp_path),)), Figures(), task=0)
    importlib.import_module("planted_package.mine")
    with pytest.raises(ImportError, match="every user may write to"):
        importlib.import_module("planted_package.planted")


def test_a_driver_tells_its_workers_what_to_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for places, name in ((sys, "path"), (sys, "meta_path")):
        monkeypatch.setattr(places, name, [*getattr(places, name)])
    monkeypatch.setattr(trusted_modules, "_judge", type(trusted_modules._judge)())
    specs: list[TaskSpec | None] = []

    def run_job(_: object, __: str, ___: str, packed: PackedTaskSpec) -> None:
        specs.append(packed.unpack())

    monkeypatch.setattr(shard_jobs, "run_job", run_job)
    assert search_beside(tmp_path / "relay.yaml", ["module:function"]) == []
    session: Any = SimpleNamespace(local=True, context=None)
    pipeline = Pipeline(name="test", steps=(Step(function="sys:exit"),), shards=1)
    with suppress(TypeError):
        shard_jobs.ShardJobs(pipeline, session, spec(1).address, lambda *_: None)._run_attempt(0, 1)
    assert specs[0] is not None
    assert specs[0].path[-1] == str(tmp_path)
    assert specs[0].judged == (str(tmp_path),)


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
