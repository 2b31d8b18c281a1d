"""However a task ends, its shard is back in time, its neighbour goes on undisturbed, and no process or file is left.

Time limits allow for a slow machine that stalls. Seen on a fast one: a killed worker is back after 0.6 s, a stopped one
0.8 s after its allowed silence, a killed daemon after 1.4 s. Without JVM or driver, all processes ended within 0.5 s.
"""

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Engines
from tests.engine.driver import driven, running
from tests.engine.watching import replaced, until, untouched, up
from tests.processes import alive, eventually, parent
from thresher.core.throwaway import sweep
from thresher.spark.driver.snapshot import ShardSnapshot

GONE_SECONDS = 60.0
TICKS: tuple[str, dict[str, Any]] = ("ticks", {})
TALLY: tuple[str, dict[str, Any]] = ("tally", {})


def send(shard: ShardSnapshot, number: signal.Signals) -> None:
    assert shard.pid is not None
    os.kill(shard.pid, number)


def test_a_lost_worker_is_replaced_and_its_neighbours_go_on(engines: Engines) -> None:
    # The limits are longer than a stall of the machine: only a stopped task is silent, and a terminated one can finish.
    with engines(TICKS, TALLY, shards=5, silence_seconds=8.0, orphan_seconds=30.0) as engine:
        killed, terminated, stopped, paused, neighbour = up(engine)
        send(stopped, signal.SIGSTOP)
        send(paused, signal.SIGSTOP)
        send(terminated, signal.SIGTERM)
        send(killed, signal.SIGKILL)
        time.sleep(1.0)  # much less than the allowed silence of a task
        send(paused, signal.SIGCONT)
        after = replaced(engine, killed)
        assert (after.attempt, after.restarts) == (2, 1)
        assert "Python worker exited unexpectedly" in (after.last_error or "")
        assert replaced(engine, terminated).last_error == "it stopped unasked: SIGTERM"
        assert replaced(engine, stopped).last_error == "it was silent for 8 s"
        eventually(lambda: not alive(stopped.pid or 0), GONE_SECONDS)
        for shard in (paused, neighbour):
            untouched(engine, shard)


def test_a_killed_worker_daemon_and_its_workers_come_back(engines: Engines) -> None:
    with engines(TICKS, TALLY) as engine:
        shards = up(engine)
        (daemon,) = {parent(shard.pid or 0) for shard in shards}
        os.kill(daemon, signal.SIGKILL)
        for shard in shards:
            replaced(engine, shard)
        # The driver knows the outcome a moment before the daemon process has ended.
        eventually(lambda: not any(alive(shard.pid or 0) for shard in shards), GONE_SECONDS)


def test_a_failing_worker_backs_off_and_its_neighbour_goes_on(engines: Engines) -> None:
    chain = (TICKS, ("misbehave", {"how": "exit_process", "always": True}), TALLY)
    with engines(*chain, back_off_seconds=0.05) as engine:
        neighbour = until(engine, lambda shot: shot.shards[1].counts.get("rows")).shards[1]
        until(engine, lambda shot: shot.shards[0].restarts >= 4)
        untouched(engine, neighbour)


def test_without_its_jvm_the_engine_fails_and_nothing_is_left(temporary: Path) -> None:
    # A directory as left behind an hour ago by a driver and a JVM that were killed together.
    old = temporary / "thresher-spark-old"
    old.mkdir()
    os.utime(old, (0, 0))
    with driven(variables={"TMPDIR": str(temporary)}) as driver:
        driver.up()
        assert not old.exists()
        driver.look()
        os.kill(driver.jvm(), signal.SIGKILL)
        assert driver.end(GONE_SECONDS) == 1
        assert driver.shot["raised"] == "EngineLost"
        assert "start the program again" in driver.shot["error"]
        driver.gone(GONE_SECONDS)
    assert not list(temporary.iterdir())


def test_killing_driver_and_jvm_leaves_only_a_directory(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with driven(variables={"TMPDIR": str(temporary)}) as driver:
        driver.up()
        driver.look()
        jvm = driver.jvm()
        driver.process.kill()
        os.kill(jvm, signal.SIGKILL)
        driver.gone(GONE_SECONDS)
        (left,) = temporary.iterdir()
    # The next engine removes the directory, once it is a minute old.
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    os.utime(left)
    sweep("thresher-spark-")
    assert left.exists()
    os.utime(left, (0, 0))
    sweep("thresher-spark-")
    assert not left.exists()


def test_a_killed_driver_ends_a_shard_that_holds_the_gil(tmp_path: Path) -> None:
    # No thread of the worker can run while the lock is held: only the kernel's alarm can end the process.
    go = tmp_path / "go"
    chain = [("ticks", {}), ("misbehave", {"how": "hang_holding_the_lock", "when": str(go)}), ("tally", {})]
    policy = {"silence_seconds": 60.0, "deaf_seconds": 4.0, "orphan_seconds": 1.0}
    with driven(chain, policy=policy) as driver:
        shot = driver.until(lambda shot: shot["shards"][0]["counts"].get("misbehaved") and shot["shards"][1]["counts"])
        go.touch()
        time.sleep(0.5)  # now the shard holds the lock
        driver.process.kill()
        driver.gone(GONE_SECONDS)  # seen: 5
        assert not alive(shot["shards"][0]["pid"])


def test_a_driver_resumed_after_a_stop_has_all_shards_again(
    temporary: Path,
) -> None:
    # Both are longer than a stall of the machine: the allowed silence of a task, and the longer one of a driver.
    silence, deaf = 6.0, 15.0
    policy = {"silence_seconds": silence, "deaf_seconds": deaf}
    with driven(policy=policy, variables={"TMPDIR": str(temporary)}) as driver:
        before = driver.up()
        driver.process.send_signal(signal.SIGSTOP)
        time.sleep(silence + 1.0)
        driver.process.send_signal(signal.SIGCONT)
        time.sleep(1.5)  # a task that counted as silent would be replaced by now
        rows = [shard["counts"]["rows"] for shard in before["shards"]]
        driver.until(lambda shot: all(s["counts"]["rows"] > n + 100 for s, n in zip(shot["shards"], rows, strict=True)))
        assert [(shard["attempt"], shard["last_error"]) for shard in driver.shot["shards"]] == [(1, None)] * 2
        # Now the driver is silent for longer than its tasks allow: they end.
        pids = [shard["pid"] for shard in before["shards"]]
        driver.process.send_signal(signal.SIGSTOP)
        eventually(lambda: not any(map(alive, pids)), deaf + GONE_SECONDS)  # seen: 0.4 s more
        driver.process.send_signal(signal.SIGCONT)
        shot = driver.until(lambda shot: running(shot) and all(shard["attempt"] == 2 for shard in shot["shards"]))
        assert "the driver was silent" in shot["shards"][0]["last_error"]
        # Finally the driver is killed.
        driver.look()
        assert len(driver.seen) >= 4  # itself, the JVM, the daemon, two workers
        driver.process.kill()
        driver.gone(GONE_SECONDS)
        assert not list(temporary.iterdir())
