"""The writers of a load, one process each: started and stopped together. None outlives the parent."""

import contextlib
import functools
import multiprocessing
import pickle
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import psycopg

from thresher.core.errors import ThresherError
from thresher.testing.history import HistoryWriter
from thresher.testing.pump.plan import Plan
from thresher.testing.pump.writer import Tally, Writer

_LOOK_SECONDS = 0.05
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)


class PumpFailed(ThresherError):  # noqa: N818
    """A writer failed with an error that does not pass; the others were stopped."""


class Fleet:
    """Runs a plan. `stop` may be called from a signal handler: each writer finishes its transaction first.

    A second call kills the writers: the outcome of their current transactions stays unknown.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stops = 0

    def stop(self) -> None:
        """Let all writers stop after their current transaction. A second call kills them."""
        self._stops += 1

    def run(self, report: Callable[[Tally], None] = lambda _tally: None) -> Tally:
        """Run all writers to their end. Report the running total from time to time; return the final one."""
        plan = self._plan
        if plan.history:
            history = HistoryWriter(plan.history, plan.run)
            history.open_run(plan.topic, epoch=time.time_ns() - time.monotonic_ns())
            history.close()
        context = multiprocessing.get_context("spawn")
        lines: dict[Connection[Any, Any], int] = {}
        processes = []
        for index in range(plan.writers):
            ours, theirs = context.Pipe()
            process = context.Process(target=_write, args=(plan, index, theirs), name=f"pump-writer-{index}")
            # Blocked until the writer ignores them: the fleet handles signals to the process group for all writers.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            lines[ours] = index
            processes.append(process)
        try:
            return self._watch(lines, report)
        finally:
            for line in lines:
                line.close()  # a writer that still runs notices the closed pipe, and stops
            for process in processes:
                if self._stops > 1:
                    process.kill()
                process.join()

    def _watch(self, lines: "dict[Connection[Any, Any], int]", report: Callable[[Tally], None]) -> Tally:
        tallies = {index: Tally() for index in lines.values()}
        waiting, busy = set(lines), set(lines)
        told = False
        while busy:
            if self._stops and not told:
                told = True
                _tell(busy, "stop")
            if self._stops > 1:
                break
            for line in cast("list[Connection[Any, Any]]", wait(list(busy), _LOOK_SECONDS)):
                match _receive(line):
                    case "failed", reason:
                        raise PumpFailed(f"writer {lines[line]}: {reason}")
                    case "ready", _:
                        waiting.discard(line)
                        if not waiting:
                            # All writers begin once all are connected, so that a measurement covers only writing.
                            _tell(busy, "go")
                    case kind, Tally() as tally:
                        tallies[lines[line]] = tally
                        if kind == "done":
                            busy.discard(line)
            report(functools.reduce(Tally.merge, tallies.values()))
        return functools.reduce(Tally.merge, tallies.values())


def _tell(lines: "set[Connection[Any, Any]]", word: str) -> None:
    for line in lines:
        with contextlib.suppress(OSError):  # the writer has ended: `_receive` reports that
            line.send(word)


def _receive(line: "Connection[Any, Any]") -> tuple[str, object]:
    try:
        kind, content = line.recv()
    except (EOFError, OSError):
        return "failed", "its process ended without a report (killed?)"
    return kind, content


def _write(plan: Plan, index: int, line: "Connection[Any, Any]") -> None:
    """Run one writer: the main function of its process."""
    for number in _PASSED_ON:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    stopped = False
    looked = 0.0

    def stop() -> bool:
        nonlocal stopped, looked
        now = time.monotonic()
        if not stopped and now - looked > _LOOK_SECONDS:
            looked = now
            try:
                stopped = line.poll() and line.recv() == "stop"
            except (EOFError, OSError):
                stopped = True
        return stopped

    sent = time.monotonic()

    def report(tally: Tally) -> None:
        nonlocal sent
        if time.monotonic() - sent > _LOOK_SECONDS:
            sent = time.monotonic()
            line.send(("progress", tally))

    try:
        writer = Writer(plan, index, stop)
        try:
            line.send(("ready", None))
            if line.recv() == "go":
                line.send(("done", writer.run(report)))
            else:
                line.send(("done", Tally()))
        finally:
            writer.close()
    except (BrokenPipeError, EOFError, ConnectionResetError):
        return  # the pump is gone
    except (ThresherError, psycopg.Error, OSError, pickle.PicklingError) as error:
        with contextlib.suppress(OSError):
            line.send(("failed", str(error).strip() or repr(error)))
