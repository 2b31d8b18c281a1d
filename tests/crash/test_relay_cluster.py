"""A relay on a real standalone cluster of two workers, to which our environment is shipped without PySpark."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.engine.cluster import Cluster, executor_of
from tests.processes import alive, environment, eventually
from tests.relay.relaying import Place
from thresher.cli.status import ask
from thresher.devstack.ports import free_port
from thresher.devstack.stack import Stack
from thresher.outbox import Message

UP_SECONDS = 150.0
RESTART_SECONDS = 60.0


def test_both_workers_publish_and_not_the_driver_and_shards_of_what_is_killed_go_on_elsewhere(
    spark_cluster: Cluster, environment_archive: Path, stack: Stack, dsn: str, topic_prefix: str
) -> None:
    at = Place(stack, dsn, topic_prefix)
    options = spark_cluster.options(environment_archive)
    where = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "thresher", "run", "--name", f"{topic_prefix}relay", "--ds", dsn]
    command += ["--bootstrap", stack.kafka.bootstrap, "--status", where, "--spark-master", spark_cluster.url]
    command += ["--spark-archives", options["archives"][0], "--spark-python", options["python"]]
    command += [word for name, value in options["conf"].items() for word in ("--spark", f"{name}={value}")]

    def stash(first: int) -> None:
        at.stash(*(Message(topic=at.topic, key=f"k{n}", value=str(n)) for n in range(first, first + 500)))

    def shards() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(where)["shards"]
        return found

    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) as relay:
        try:
            stash(0)
            at.read(500, seconds=UP_SECONDS)
            eventually(lambda: all(shard["relayed"] and shard["pid"] for shard in shards()), 10)
            victim, neighbour = shards()
            assert executor_of(victim["pid"]) != executor_of(neighbour["pid"])
            assert relay.pid not in {victim["pid"], neighbour["pid"]}
            assert {spark_cluster.worker_of(shard["pid"]) for shard in (victim, neighbour)} == {"one", "two"}
            os.kill(executor_of(victim["pid"]), signal.SIGKILL)
            stash(500)
            # What lost its executor may send these before it ends, so they do not show that another took over.
            at.read(1000, seconds=RESTART_SECONDS)
            eventually(lambda: shards()[0]["pid"] not in (None, victim["pid"]), RESTART_SECONDS)
            eventually(lambda: not alive(victim["pid"]), 20)
            stash(1000)
            at.read(1500, seconds=RESTART_SECONDS)
            again, untouched = shards()
            assert again["restarts"] >= 1
            assert [untouched[key] for key in ("attempt", "pid")] == [neighbour[key] for key in ("attempt", "pid")]
            unlucky = spark_cluster.worker_of(again["pid"])
            spark_cluster.workers[unlucky].kill()
            stash(1500)
            at.read(2000, seconds=RESTART_SECONDS)

            def elsewhere() -> bool:
                pid = shards()[0]["pid"]
                try:
                    return pid is not None and spark_cluster.worker_of(pid) != unlucky
                except (AssertionError, OSError):
                    # What is left of the killed worker is no process of the cluster any more.
                    return False

            eventually(elsewhere, RESTART_SECONDS)
            spark_cluster.start_worker(unlucky)
        finally:
            relay.terminate()
            assert relay.wait(60) == 0, relay.stderr and relay.stderr.read()
