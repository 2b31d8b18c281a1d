"""A relay on a real standalone cluster of two workers. Our environment is shipped to it without PySpark."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.engine.cluster import Cluster, executor_of
from tests.processes import alive, environment, eventually
from tests.relay.relaying import Place
from thresher.cli.status import ask
from thresher.devstack.ports import free_port
from thresher.devstack.stack import Stack
from thresher.outbox import Message

# Seen: 103 s for the whole test, on a busy machine.
UP_SECONDS = 200.0
RESTART_SECONDS = 120.0
# Errors that a stall of the machine causes in any shard, also in the neighbour of a killed one.
STALLED = ("CommitUnknown", "it was silent")


@pytest.mark.timeout(900)
def test_workers_publish_and_shards_of_killed_processes_move(
    spark_cluster: Cluster, environment_archive: Path, stack: Stack, dsn: str, topic_prefix: str, tmp_path: Path
) -> None:
    at = Place(stack, dsn, topic_prefix)
    options = spark_cluster.options(environment_archive)
    where = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "thresher", "run", "--name", f"{topic_prefix}relay"]
    command += ["--bootstrap", stack.kafka.bootstrap, "--status", where, "--spark-master", spark_cluster.url]
    command += ["--spark-archives", options["archives"][0], "--spark-python", options["python"]]
    command += [word for name, value in options["conf"].items() for word in ("--spark", f"{name}={value}")]
    # With an election, a stalled driver could lose its leadership, and all shards would start again.
    command += ["--election", "none"]
    # As many executors as shards: with a spare executor, both shards could run on one worker.
    command += ["--spark", "spark.cores.max=2"]
    log = tmp_path / "relay.log"

    def stash(first: int) -> None:
        at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(first, first + 500)))

    def shards() -> list[dict[str, Any]]:
        """Wait until both shards have relayed and have a process; return them as they were at that moment."""
        found: list[dict[str, Any]] = []

        def served() -> bool:
            found[:] = ask(where)["shards"]
            return len(found) == 2 and all(each["relayed"] and each["pid"] and alive(each["pid"]) for each in found)

        eventually(served, RESTART_SECONDS, lambda: f"{found}\n{log.read_text()}")
        return found

    def pid() -> int | None:
        found: int | None = ask(where)["shards"][0]["pid"]
        return found

    with log.open("wb") as said, subprocess.Popen(command, stderr=said, env=environment(THRESHER_DS=dsn)) as relay:
        try:
            stash(0)
            at.read(500, seconds=UP_SECONDS)
            victim, neighbour = shards()
            assert executor_of(victim["pid"]) != executor_of(neighbour["pid"])
            assert relay.pid not in {victim["pid"], neighbour["pid"]}
            assert {spark_cluster.worker_of(shard["pid"]) for shard in (victim, neighbour)} == {"one", "two"}
            os.kill(executor_of(victim["pid"]), signal.SIGKILL)
            stash(500)
            # The task that lost its executor may send these rows before it ends: they prove no take-over.
            at.read(1000, seconds=RESTART_SECONDS)
            eventually(lambda: pid() not in {None, victim["pid"]}, RESTART_SECONDS)
            eventually(lambda: not alive(victim["pid"]), 60)
            stash(1000)
            at.read(1500, seconds=RESTART_SECONDS)
            again, untouched = shards()
            assert again["restarts"] >= 1
            assert [untouched[key] for key in ("attempt", "pid")] == [
                neighbour[key] for key in ("attempt", "pid")
            ] or any(word in str(untouched["last_error"]) for word in STALLED), untouched
            unlucky = spark_cluster.worker_of(again["pid"])
            spark_cluster.workers[unlucky].kill()
            stash(1500)
            at.read(2000, seconds=RESTART_SECONDS)

            def elsewhere() -> bool:
                now = pid()
                try:
                    return now is not None and spark_cluster.worker_of(now) != unlucky
                except (AssertionError, OSError):
                    # The remaining processes of the killed worker no longer belong to the cluster.
                    return False

            eventually(elsewhere, RESTART_SECONDS)
            spark_cluster.start_worker(unlucky)
        finally:
            relay.terminate()
            assert relay.wait(120) == 0, log.read_text()
