"""The engine's cost: of a start, a restart of a shard, a stop, idling, and each record batch.

Each start is a new process, in turns with a plain default SparkSession that runs one Python task. Figures are medians
of the rounds, after one warm-up round, which also creates the archive of classes. Everything runs on this machine; the
cluster is a standalone one on loopback. The last line printed is one JSON object.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.measuring.processes import cpu_seconds
from bench.measuring.report import report
from bench.measuring.rounds import in_turns, medians
from tests.engine.cluster import cluster, executor_of
from tests.engine.driver import FUNCTIONS, Driver, driven, running
from thresher.spark.pipeline import Step
from thresher.spark.session.environment import pack
from thresher.spark.signal_safe_event import SignalSafeEvent
from thresher.spark.worker.chain import run_chain
from thresher.spark.worker.shard import Figures, Shard

BATCHES, ROWS = 100_000, 100
PLAIN = """
import time
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[4]").getOrCreate()
def first(batches):
    yield time.time()
print(session.sparkContext.parallelize([0], 1).mapPartitions(first).collect()[0])
"""
ENGINE = """
import sys, time
sys.path.append(sys.argv[1])
from thresher.spark import Engine, Pipeline, Step
events = []
engine = Engine(
    Pipeline(name="bench", shards=2, steps=(Step(function="functions:ticks"), Step(function="functions:tally"))),
    observer=lambda *event: events.append(event),
)
engine.start()
while not events:
    time.sleep(0.01)
print(events[0][2]["at"])
began = time.time()
engine.stop()
print(time.time() - began)
"""


def started(*command: str) -> list[float]:
    """Run a program; return the numbers that it printed, the first one as seconds since the start of the process."""
    began = time.time()
    answer = subprocess.run(
        command,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    first, *others = map(float, answer.stdout.split())
    return [first - began, *others]


def starts(rounds: int) -> dict[str, float]:
    found = in_turns(
        {
            "engine": lambda: started(sys.executable, "-c", ENGINE, str(FUNCTIONS.parent)),
            "plain": lambda: started(sys.executable, "-W", "ignore", "-c", PLAIN),
        },
        rounds,
        warm=1,
    )
    return medians(
        {
            "start_s": [start for start, _ in found["engine"]],
            "default_session_start_s": [start for (start,) in found["plain"]],
            "stop_s": [stop for _, stop in found["engine"]],
        }
    )


def is_back(gone: int, shot: dict[str, Any]) -> bool:
    shard = shot["shards"][0]
    return bool(shard["state"] == "running" and shard["pid"] != gone)


def back(driver: Driver, rounds: int, kill: Callable[[int], object]) -> float:
    """Return the time until a shard counts again after the kill; its neighbour must keep its process."""

    def once() -> float:
        driver.until(running, 120)
        victim, neighbour = driver.shard(0), driver.shard(1)
        began = time.monotonic()
        kill(victim["pid"])
        driver.until(partial(is_back, victim["pid"]), 120)
        took = time.monotonic() - began
        assert driver.shard(1)["pid"] == neighbour["pid"]
        time.sleep(1.5)
        return took

    return statistics.median(in_turns({"back": once}, rounds, warm=1)["back"])


def core_share(driver: Driver, seconds: float) -> float:
    """Return the share of one core that the driver and its JVM use while two shards idle."""
    pids = [driver.process.pid, driver.jvm()]
    before, began = cpu_seconds(pids), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(pids) - before) / (time.monotonic() - began)


def source(_shard: Shard, _config: Any) -> Iterator[pa.RecordBatch]:
    batch = pa.record_batch({"number": list(range(ROWS))})
    for _ in range(BATCHES):
        yield batch


def transform(_shard: Shard, _config: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def sink(_shard: Shard, _config: Any, batches: Iterator[pa.RecordBatch]) -> None:
    for _ in batches:
        pass


def batch_overhead(rounds: int) -> float:
    """Return the microseconds per batch through three functions, beyond direct calls."""
    steps = [Step(function=f"{__name__}:{name}") for name in ("source", "transform", "sink")]
    with ExitStack() as resources:
        shard = Shard(
            pipeline="bench",
            index=0,
            shards=1,
            attempt=1,
            stop_requested=SignalSafeEvent(),
            figures=Figures(),
            resources=resources,
        )

        def direct() -> float:
            began = time.perf_counter()
            sink(shard, {}, transform(shard, {}, source(shard, {})))
            return time.perf_counter() - began

        def chained() -> float:
            began = time.perf_counter()
            run_chain(steps, shard)
            return time.perf_counter() - began

        found = in_turns({"direct": direct, "chained": chained}, rounds, warm=1)
    return statistics.median(
        (one - other) / BATCHES * 1e6 for one, other in zip(found["chained"], found["direct"], strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    options = parser.parse_args()
    figures = starts(options.rounds)
    idle = [("ticks", {"every": 3600.0}), ("tally", {})]
    with driven([("ticks", {}), ("tally", {})], policy={}) as driver:
        figures["restart_worker_s"] = back(driver, options.rounds, lambda pid: os.kill(pid, signal.SIGKILL))
    with driven(idle, quiet=True, policy={}) as driver:
        driver.until(lambda shot: all(shard["state"] == "running" for shard in shot["shards"]), 60)
        time.sleep(10)  # Java compiles the code of its start
        figures["idle_core_share"] = core_share(driver, options.idle_seconds)
    with tempfile.TemporaryDirectory(prefix="thresher-bench-") as scratch, cluster(Path(scratch)) as standalone:
        archive = Path(scratch) / "environment.tar.gz"
        pack(archive, only=["thresher", "pyarrow"])
        with driven(spark=standalone.options(archive), policy={}) as driver:
            driver.until(running, 150)
            figures["restart_executor_s"] = back(
                driver, options.rounds, lambda pid: os.kill(executor_of(pid), signal.SIGKILL)
            )
    figures["batch_overhead_us"] = batch_overhead(options.rounds)
    figures["start_ratio"] = figures["start_s"] / figures["default_session_start_s"]
    report(
        "engine",
        figures,
        wanted={"start_ratio": "≤ 0.6", "idle_core_share": "≤ 0.02", "batch_overhead_us": "≤ 20"},
        settings={"shards": 2, "rounds": options.rounds, "batch_rows": ROWS},
        note=f"2 shards, {options.rounds} rounds after one for warm-up, {ROWS} rows a batch",
    )


if __name__ == "__main__":
    main()
