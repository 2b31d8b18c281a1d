"""Functions for pipelines under test: correct ones, and one for every kind of misbehaviour.

A function misbehaves only in shard 0, or in one shard for each given way, so that a test can see the next shard go on.
"""

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from thresher.core.errors import ThresherError
from thresher.spark.worker.shard import Shard

Config = Mapping[str, Any]
Batches = Iterator[pa.RecordBatch]


class Hopeless(ThresherError):
    """A pipeline's own error that no retry can help."""


class Passing(ThresherError):
    """A pipeline's own error that a retry may help."""

    retryable = True


class Particular(ThresherError):
    """An error that cannot be unpickled."""

    retryable = True

    def __init__(self, *, wanted: str) -> None:
        super().__init__(f"it is {wanted}")


def one(number: int) -> pa.RecordBatch:
    return pa.record_batch({"number": [number]})


def ticks(shard: Shard, config: Config) -> Batches:
    number = 0
    while not shard.wait(config.get("every", 0.02)):
        number += 1
        yield one(number)


def some(shard: Shard, config: Config) -> Batches:
    for number in range(config["rows"]):
        yield one(number)


def same(shard: Shard, config: Config, batches: Batches) -> Batches:
    yield from batches


def tally(shard: Shard, config: Config, batches: Batches) -> None:
    for batch in batches:
        shard.count("rows", batch.num_rows)
        shard.gauge("last", batch["number"][-1].as_py())
        if shard.counts["rows"] == 1:
            shard.event("first", at=time.time(), pid=os.getpid())


def slow(shard: Shard, config: Config, batches: Batches) -> None:
    """Take long over each batch, and write a trace of begun and finished batches."""
    trace = Path(config["trace"])
    for batch in batches:
        number = batch["number"][0].as_py()
        with trace.open("a") as file:
            file.write(f"begin {shard.index} {number}\n")
        shard.count("begun")
        time.sleep(config["seconds"])
        with trace.open("a") as file:
            file.write(f"end {shard.index} {number}\n")


def misbehave(shard: Shard, config: Config, batches: Batches) -> Batches:
    hows = [config["how"]] if isinstance(config["how"], str) else config["how"]
    for batch in batches:
        if shard.index < len(hows) and (config.get("always") or shard.attempt == 1):
            shard.count("misbehaved")
            shard.wait(config.get("after", 0.0))
            while "when" in config and not Path(config["when"]).exists():
                shard.wait(0.02)
            yield from MISBEHAVIOURS[hows[shard.index]]()
        yield batch


def raise_error() -> Batches:
    raise ValueError("a bad day")


def raise_fatal() -> Batches:
    raise Hopeless("there is no such thing")


def raise_passing() -> Batches:
    raise Passing("not now")


def raise_particular() -> Batches:
    raise Particular(wanted="complicated")


def exit_python() -> Batches:
    sys.exit(3)


def exit_process() -> Batches:
    os._exit(3)


def crash() -> Batches:
    ctypes.string_at(0)
    raise AssertionError


def hang() -> Batches:
    time.sleep(1000)
    raise AssertionError


def hang_holding_the_lock() -> Batches:
    # PyDLL keeps the GIL: no other thread of the process runs. No signal ends the wait for a mutex.
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
    raise AssertionError


def fork_and_die() -> Batches:
    # The child inherits the connections to Spark and to the driver.
    if os.fork() == 0:
        time.sleep(60)
    os._exit(1)


def eat_memory() -> Batches:
    eaten = []
    for _ in range(50):  # far above the limit, and within the machine's memory
        eaten.append(b"x" * 20_000_000)
        time.sleep(0.01)
    time.sleep(1000)
    raise AssertionError


def pass_on_nothing() -> Any:
    return iter([None])


MISBEHAVIOURS = {each.__name__: each for each in (
    fork_and_die,
    raise_error, raise_fatal, raise_passing, raise_particular, exit_python, exit_process, crash, hang,
    hang_holding_the_lock, eat_memory, pass_on_nothing,
)}  # fmt: skip


def leaves_early(shard: Shard, config: Config, batches: Batches) -> None:
    next(batches)


def swallows(shard: Shard, config: Config, batches: Batches) -> None:
    shard.enter(contextlib.suppress(Exception))
    next(batches)
    raise Hopeless("somebody tries to hide this")


def fails_to_close(shard: Shard, config: Config) -> Batches:
    try:
        yield one(1)
        yield one(2)
    finally:
        if config["how"] == "hang":
            time.sleep(1000)
        raise ValueError("closing failed")


def raises_fatal(shard: Shard, config: Config, batches: Batches) -> None:
    next(batches)
    if config.get("stdout"):
        sys.stdout.close()
        sys.stderr = None
    raise Hopeless("there is no such thing")


def forks(shard: Shard, config: Config, batches: Batches) -> None:
    """Leave an idle child process behind, and report it."""
    for batch in batches:
        if not shard.counts:
            child = os.fork()
            if child == 0:
                time.sleep(120)
                os._exit(0)
            os.kill(child, 0)
            shard.event("child", pid=child)
        shard.count("rows", batch.num_rows)


class Mapped:
    """A configuration of a user-defined class."""


def takes_mapped(shard: Shard, config: Config, batches: Batches) -> None:
    assert isinstance(config["value"], Mapped)
    for batch in batches:
        shard.count("rows", batch.num_rows)
