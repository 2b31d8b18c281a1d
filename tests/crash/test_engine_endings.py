"""Whatever ends a task, its shard is back within a bound and its neighbour has not noticed; and nothing stays behind.

Bounds are five times what was seen, plus 5 s. Seen: a killed worker 0.6 s, a stopped one 3.8 s, a killed daemon 1.4 s;
without its JVM or its driver everything was gone within 0.5 s.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.conftest import Engines
from tests.engine.driver import driven, running
from tests.engine.watching import replaced, until, untouched, up
from tests.processes import alive, eventually, parent
from thresher.spark.snapshot import ShardSnapshot

RESTART_SECONDS = 8.0
SILENCE_SECONDS = 24.0
DAEMON_SECONDS = 15.0
GONE_SECONDS = 20.0
TICKS: tuple[str, dict[str, Any]] = ("ticks", {})
TALLY: tuple[str, dict[str, Any]] = ("tally", {})


def send(shard: ShardSnapshot, number: signal.Signals) -> None:
    assert shard.pid is not None
    os.kill(shard.pid, number)


def test_a_killed_worker(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        victim, neighbour = up(engine)
        send(victim, signal.SIGKILL)
        after = replaced(engine, victim, RESTART_SECONDS)
        assert (after.attempt, after.restarts) == (2, 1)
        assert "Python worker exited unexpectedly" in (after.last_error or "")
        untouched(engine, neighbour)


def test_a_worker_told_to_terminate_finishes_its_batch_and_is_replaced(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        victim, neighbour = up(engine)
        send(victim, signal.SIGTERM)
        after = replaced(engine, victim, RESTART_SECONDS)
        assert after.last_error == "it stopped unasked: SIGTERM"
        untouched(engine, neighbour)


def test_a_stopped_worker_is_replaced(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        victim, neighbour = up(engine)
        send(victim, signal.SIGSTOP)
        after = replaced(engine, victim, SILENCE_SECONDS)
        assert after.last_error == "it was silent for 3 s"
        assert victim.pid is not None
        assert not alive(victim.pid)
        untouched(engine, neighbour)


def test_a_worker_stopped_for_a_moment_goes_on(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        victim, neighbour = up(engine)
        send(victim, signal.SIGSTOP)
        time.sleep(1.0)
        send(victim, signal.SIGCONT)
        untouched(engine, victim)
        untouched(engine, neighbour)


def test_a_killed_worker_daemon_takes_its_workers_along_and_both_come_back(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        shards = up(engine)
        (daemon,) = {parent(shard.pid or 0) for shard in shards}
        os.kill(daemon, signal.SIGKILL)
        for shard in shards:
            replaced(engine, shard, DAEMON_SECONDS)
        assert not any(alive(shard.pid or 0) for shard in shards)


def test_a_worker_that_fails_again_and_again_backs_off_and_its_neighbour_goes_on(engines: Engines) -> None:
    chain = (TICKS, ("misbehave", {"how": "exit_process", "always": True}), TALLY)
    with engines(*chain, back_off_seconds=0.05) as engine:
        neighbour = until(engine, lambda shot: shot.shards[1].counts.get("rows"), 60).shards[1]
        until(engine, lambda shot: shot.shards[0].restarts >= 4, 40)
        untouched(engine, neighbour)


def test_without_its_jvm_the_engine_fails_and_nothing_is_left(tmp_path: Path) -> None:
    with driven(variables={"TMPDIR": str(tmp_path)}) as driver:
        driver.up()
        driver.look()
        os.kill(driver.jvm(), signal.SIGKILL)
        assert driver.end(GONE_SECONDS) == 1
        assert driver.shot["raised"] == "EngineLost"
        assert "start the program again" in driver.shot["error"]
        driver.gone(10.0)
    assert not list(tmp_path.iterdir())


def test_after_the_driver_was_killed_nothing_is_left(tmp_path: Path) -> None:
    with driven(variables={"TMPDIR": str(tmp_path)}) as driver:
        driver.up()
        driver.look()
        assert len(driver.seen) >= 4  # itself, the JVM, the daemon, two workers
        driver.process.kill()
        driver.gone(GONE_SECONDS)
        assert not list(tmp_path.iterdir())


def test_after_driver_and_jvm_were_killed_together_only_a_directory_is_left(tmp_path: Path) -> None:
    with driven(variables={"TMPDIR": str(tmp_path)}) as driver:
        driver.up()
        driver.look()
        jvm = driver.jvm()
        driver.process.kill()
        os.kill(jvm, signal.SIGKILL)
        driver.gone(GONE_SECONDS)
        (left,) = tmp_path.iterdir()
    # The next one removes it, once it is a minute old.
    os.utime(left, (0, 0))
    with driven(variables={"TMPDIR": str(tmp_path)}) as driver:
        driver.up()
        assert not left.exists()
        driver.process.terminate()
        assert driver.end(GONE_SECONDS) == 0
    assert not list(tmp_path.iterdir())


def test_a_driver_that_was_killed_takes_a_shard_along_that_keeps_the_interpreters_lock() -> None:
    # Nothing in the worker's own process can run any more: the kernel's alarm has to end it.
    chain = [("ticks", {}), ("misbehave", {"how": "hang_holding_the_lock", "after": 1.5}), ("tally", {})]
    policy = {"silence_seconds": 60.0, "deaf_seconds": 2.0, "orphan_seconds": 2.0}
    with driven(chain, policy=policy) as driver:
        driver.until(lambda shot: shot["shards"][0]["counts"].get("misbehaved") and shot["shards"][1]["counts"], 60)
        time.sleep(1.5)  # now it does
        victim = driver.shard(0)["pid"]
        driver.process.kill()
        driver.gone(25.0)  # seen: 4
        assert not alive(victim)


def test_a_driver_that_was_stopped_finds_its_shards_as_they_were() -> None:
    with driven() as driver:
        before = driver.up()
        driver.process.send_signal(signal.SIGSTOP)
        time.sleep(5.0)  # longer than a task may be silent, shorter than a driver may
        driver.process.send_signal(signal.SIGCONT)
        time.sleep(3.0)  # whoever was taken for silent has been replaced by now
        rows = [shard["counts"]["rows"] for shard in before["shards"]]
        driver.until(
            lambda shot: all(s["counts"]["rows"] > n + 200 for s, n in zip(shot["shards"], rows, strict=True)), 30
        )
        assert [(shard["attempt"], shard["last_error"]) for shard in driver.shot["shards"]] == [(1, None)] * 2


def test_shards_of_a_driver_that_was_stopped_for_long_end_and_it_starts_them_again() -> None:
    with driven(policy={"deaf_seconds": 2.0}) as driver:
        before = driver.up()
        pids = [shard["pid"] for shard in before["shards"]]
        driver.process.send_signal(signal.SIGSTOP)
        eventually(lambda: not any(map(alive, pids)), 20.0)  # seen: 2.4
        driver.process.send_signal(signal.SIGCONT)
        driver.until(lambda shot: running(shot) and all(shard["attempt"] == 2 for shard in shot["shards"]), 30)
        assert "the driver was silent" in driver.shard(0)["last_error"]
