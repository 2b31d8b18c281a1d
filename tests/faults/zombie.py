"""A program that is stopped in the middle of its work, superseded, and resumed."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from tests.faults import crash_hook
from tests.faults.orders import PATIENT, Orders
from tests.faults.program import Program
from tests.processes import descendants, is_java
from thresher.delivery.crash_points import CrashPoint
from thresher.spark.process import Process, find_process


class Zombie:
    """One program with a shard held at each crash point. Leaving its context kills all its processes.

    `directory` is created. `victim` is the part that will be stopped: "worker", "jvm", "driver" or "whole".
    """

    def __init__(self, program: Program, directory: Path, *, victim: str, points: dict[int, CrashPoint]) -> None:
        self.victim, self._points, self._directory = victim, points, directory
        self._orders = Orders(directory, lambda: f"{victim}: {self.said()}")
        settings = {"shards": len(points), "hook": crash_hook.HOOK, "policy": PATIENT}
        self._program = program.changed(variables=crash_hook.variables(directory), **settings)
        self._workers: list[Process] = []
        self._stopped: dict[str, list[Process]] = {}

    def __enter__(self) -> Self:
        self._directory.mkdir()
        for shard, point in self._points.items():
            self._orders.stop(shard, point)
        self.process = self._program.start(self._directory / "log")
        return self

    def __exit__(self, *_: object) -> None:
        below = _there(descendants(self.process.pid)) if self.process.poll() is None else []
        self.process.kill()
        for process in (*below, *self._workers):
            process.kill()
        self.process.wait(60)

    def arrive(self) -> dict[int, dict[str, Any]]:
        """Wait until every shard is held at its crash point; return their reports: process and rows in flight."""
        found = {shard: self._orders.arrived(shard, point) for shard, point in self._points.items()}
        self._workers = _there(arrival["pid"] for arrival in found.values())
        assert len(self._workers) == len(self._points), f"{self.victim}: a worker has ended: {self.said()}"
        return found

    def stop(self) -> None:
        """Stop the victim: its workers, its JVM, its driver, or the whole."""
        below = descendants(self.process.pid)
        parts = {
            "driver": _there([self.process.pid]),
            "jvm": _there(filter(is_java, below)),
            "worker": self._workers,
        }
        if self.victim == "whole":
            known = {process.pid for part in parts.values() for process in part}
            self._stopped = {**parts, "rest": _there(below - known)}
        else:
            self._stopped = {self.victim: parts[self.victim]}
        for part in self._stopped.values():
            _signal(part, signal.SIGSTOP)

    def go_on(self, *parts: str) -> None:
        """Resume these parts of the victim, or all of it, and release its shards from their crash points."""
        for shard in self._points:
            (self._directory / f"go-{shard}").touch()
        for part in parts or tuple(self._stopped):
            _signal(self._stopped.pop(part), signal.SIGCONT)

    def said(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-3000:]


def _there(pids: Iterable[int]) -> list[Process]:
    """Return the running processes, each with its start time: an id alone may be reused meanwhile."""
    return [process for process in map(find_process, pids) if process is not None]


def _signal(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            if process.alive:
                os.kill(process.pid, number)
