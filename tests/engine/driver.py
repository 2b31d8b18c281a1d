"""Starts the engine's test program and follows its snapshots."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.processes import command_line, descendants, environment, eventually
from thresher.spark.process import Process, find_process

PROGRAM = Path(__file__).with_name("program.py")
FUNCTIONS = Path(__file__).with_name("functions.py")
# Only how long a failing test waits. Seen: 6 s until all shards were up, on an idle machine.
UP_SECONDS = 90.0
# A long allowed silence, so that a stall of the machine ends no task: tests of silence set their own.
STEADY = {"silence_seconds": 15.0, "deaf_seconds": 20.0}

Shot = dict[str, Any]


class Driver:
    """A running program: its process, its snapshots, and every process that it was seen to have."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.shots: list[Shot] = []
        self.said: list[str] = []
        # Process ids are reused: a process is identified by its start time too.
        self.seen: set[Process] = set()
        self._note(process.pid)
        threads = [threading.Thread(target=each, daemon=True) for each in (self._follow, self._hear)]
        for thread in threads:
            thread.start()
        self._threads = threads

    def _follow(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                with contextlib.suppress(ValueError):  # the partial last line of a killed program
                    self.shots.append(json.loads(line))

    def _hear(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as output:
            for line in output:
                self.said.append(line.rstrip())

    @property
    def shot(self) -> Shot:
        return self.shots[-1]

    def shard(self, index: int) -> Shot:
        shard: Shot = self.shot["shards"][index]
        return shard

    def until(self, condition: Callable[[Shot], object], seconds: float = UP_SECONDS) -> Shot:
        """Wait until a snapshot satisfies the condition, and return it: the next one may differ."""
        began = time.monotonic()
        while not (self.shots and condition(shot := self.shot)):
            assert time.monotonic() - began < seconds, f"not within {seconds} s: {self.shots[-1:]} {self.said[-20:]}"
            assert self.process.poll() is None or self.shots or self._threads[0].is_alive(), self.said[-20:]
            time.sleep(0.02)
        self.look()
        return shot

    def up(self) -> Shot:
        return self.until(running)

    def _note(self, *pids: int) -> None:
        self.seen |= {found for pid in pids if (found := find_process(pid)) is not None}

    def look(self) -> set[Process]:
        """Note the program's descendants."""
        self._note(*descendants(self.process.pid))
        self._note(*(shard["pid"] for shot in self.shots[-1:] for shard in shot["shards"] if shard["pid"]))
        return self.seen

    def jvm(self) -> int:
        """Return the process id of its JVM."""
        (found,) = [
            pid for pid in descendants(self.process.pid)
            if b"org.apache.spark.deploy.SparkSubmit" in command_line(pid)
        ]  # fmt: skip
        return found

    def end(self, seconds: float) -> int:
        """Wait for the program's end, and return its exit status."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1.0)
            raise AssertionError(f"not ended within {seconds} s: {self.shots[-1:]}\n" + "\n".join(self.said)) from None
        # Its last output is read by then, unless a process that it left behind keeps the pipe open.
        for thread in self._threads:
            thread.join(30)
        return status

    def gone(self, seconds: float = 60.0) -> None:
        """Check that every process of the program ends in time."""
        eventually(lambda: not any(process.alive for process in self.seen), seconds)


def running(shot: Shot) -> bool:
    return all(shard["state"] == "running" and shard["counts"] for shard in shot["shards"])


def given(steps: Sequence[tuple[str, dict[str, Any]]], **others: Any) -> str:
    return json.dumps({"steps": steps, **others})


Chain = Sequence[tuple[str, dict[str, Any]]]

TICKS: Chain = [("ticks", {}), ("tally", {})]


@contextlib.contextmanager
def driven(
    steps: Chain = TICKS,
    *,
    command: Sequence[str] = (sys.executable,),
    variables: dict[str, str] | None = None,
    terminal: int | None = None,
    directory: Path | None = None,
    **others: Any,
) -> Iterator[Driver]:
    """Run the program, in a directory if one is given; at the end, stop it and kill its remaining processes."""
    others.setdefault("policy", STEADY)
    process = subprocess.Popen(
        [*command, str(PROGRAM), given(steps, **others)],
        stdin=terminal if terminal is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**(variables or {})),
        cwd=directory,
    )
    driver = Driver(process)
    try:
        yield driver
    finally:
        driver.look()
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        for each in driver.seen:
            each.kill()
        driver.end(60)
