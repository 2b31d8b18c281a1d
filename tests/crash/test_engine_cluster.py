"""The engine on a real standalone cluster of a master and two workers. Our environment is shipped without PySpark.

Run by `./run soak engine`; `./run test` has a relay on the same cluster. Time limits are five times the longest time
seen, plus the length of a stall of the machine.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.cluster import Cluster, executor_of
from tests.engine.driver import Driver, Shot, driven, running
from tests.processes import alive, descendants, eventually

pytestmark = pytest.mark.soak

SHARDS = 4
UP_SECONDS = 150.0
RESTART_SECONDS = 60.0
# Longer than a usual stall of the machine.
SILENCE_SECONDS = 10.0


@pytest.fixture(scope="module")
def driver(spark_cluster: Cluster, environment_archive: Path) -> Iterator[Driver]:
    policy = {"silence_seconds": SILENCE_SECONDS, "deaf_seconds": 20.0}
    with driven(shards=SHARDS, spark=spark_cluster.options(environment_archive), policy=policy) as running_driver:
        running_driver.until(running, UP_SECONDS)
        yield running_driver
        running_driver.process.terminate()
        assert running_driver.end(60) == 0
        running_driver.gone()


@pytest.fixture
def shards(driver: Driver) -> list[Shot]:
    """All shards, running and counting."""
    found: list[Shot] = driver.until(running, UP_SECONDS)["shards"]
    return found


def replaced(driver: Driver, before: Shot, seconds: float) -> Shot:
    index = before["shard"]
    shot = driver.until(
        lambda shot: (
            shot["shards"][index]["state"] == "running"
            and shot["shards"][index]["pid"] != before["pid"]
            and shot["shards"][index]["counts"]["rows"] > before["counts"]["rows"]
        ),
        seconds,
    )
    now: Shot = shot["shards"][index]
    return now


def untouched(driver: Driver, before: Shot) -> None:
    index = before["shard"]
    now = driver.until(lambda shot: shot["shards"][index]["counts"]["rows"] > before["counts"]["rows"])["shards"][index]
    assert [now[key] for key in ("attempt", "pid", "restarts")] == [
        before[key] for key in ("attempt", "pid", "restarts")
    ]


@pytest.fixture(scope="module", autouse=True)
def first_homes(spark_cluster: Cluster, driver: Driver) -> set[str]:
    """The workers that had shards before any test killed one of them."""
    return {spark_cluster.worker_of(shard["pid"]) for shard in driver.until(running)["shards"]}


def test_shards_spread_over_both_workers(first_homes: set[str]) -> None:
    assert first_homes == {"one", "two"}


def test_a_killed_worker_process_is_replaced(driver: Driver, shards: list[Shot]) -> None:
    victim, *neighbours = shards
    os.kill(victim["pid"], signal.SIGKILL)
    assert replaced(driver, victim, RESTART_SECONDS)["restarts"] == victim["restarts"] + 1
    for neighbour in neighbours:
        untouched(driver, neighbour)


def test_a_killed_executor_is_replaced(driver: Driver, shards: list[Shot]) -> None:
    victim, *neighbours = shards
    os.kill(executor_of(victim["pid"]), signal.SIGKILL)
    assert replaced(driver, victim, RESTART_SECONDS)["restarts"] == victim["restarts"] + 1
    eventually(lambda: not alive(victim["pid"]), 60)
    for neighbour in neighbours:
        untouched(driver, neighbour)


def test_a_stopped_worker_process_is_replaced_and_ends(driver: Driver, shards: list[Shot]) -> None:
    victim, *neighbours = shards
    os.kill(victim["pid"], signal.SIGSTOP)
    after = replaced(driver, victim, RESTART_SECONDS)
    assert after["last_error"] == f"it was silent for {SILENCE_SECONDS:g} s"
    eventually(lambda: not alive(victim["pid"]), 60)
    for neighbour in neighbours:
        untouched(driver, neighbour)


def test_a_stopped_executor_is_replaced_and_ends_when_resumed(driver: Driver, shards: list[Shot]) -> None:
    victim, *neighbours = shards
    executor = executor_of(victim["pid"])
    everybody = {executor, *descendants(executor)}
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    replaced(driver, victim, RESTART_SECONDS * 2)
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    eventually(lambda: not alive(victim["pid"]), 60)
    time.sleep(1.0)
    driver.until(running)
    for neighbour in neighbours:
        untouched(driver, neighbour)


def test_a_stopped_executor_with_a_live_worker_is_replaced(driver: Driver, shards: list[Shot]) -> None:
    victim, *neighbours = shards
    executor = executor_of(victim["pid"])
    os.kill(executor, signal.SIGSTOP)
    # The task's line to the driver still works, so only Spark notices. The driver then ends the task.
    replaced(driver, victim, 90.0)
    eventually(lambda: not alive(victim["pid"]), 60)
    os.kill(executor, signal.SIGCONT)
    eventually(lambda: not alive(executor), 60)
    for neighbour in neighbours:
        untouched(driver, neighbour)


def test_the_shards_of_a_killed_standalone_worker_go_on_elsewhere(
    spark_cluster: Cluster, driver: Driver, shards: list[Shot]
) -> None:
    homes = {shard["shard"]: spark_cluster.worker_of(shard["pid"]) for shard in shards}
    unlucky = homes[0]
    lucky = "two" if unlucky == "one" else "one"
    spark_cluster.workers[unlucky].kill()
    for shard in shards:
        if homes[shard["shard"]] == unlucky:
            after = replaced(driver, shard, RESTART_SECONDS * 2)
            assert spark_cluster.worker_of(after["pid"]) == lucky
        else:
            untouched(driver, shard)
    spark_cluster.start_worker(unlucky)


def test_executors_end_after_their_driver_is_killed(spark_cluster: Cluster, environment_archive: Path) -> None:
    with driven(shards=1, spark=spark_cluster.options(environment_archive)) as victim:
        worker = victim.until(running, UP_SECONDS)["shards"][0]["pid"]
        executor = executor_of(worker)
        victim.look()
        victim.process.kill()
        eventually(lambda: not alive(worker), 60)
        eventually(lambda: not alive(executor), 60)
        victim.gone()


def test_executors_without_our_environment_are_a_clear_error(spark_cluster: Cluster) -> None:
    bare = spark_cluster.options(Path("unused")) | {"archives": [], "python": sys._base_executable}  # type: ignore[attr-defined]
    with driven(shards=1, spark=bare) as hopeless:
        assert hopeless.end(UP_SECONDS) == 1
        assert "the workers' Python lacks thresher" in hopeless.shot["error"]
