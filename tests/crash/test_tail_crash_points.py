"""The tail is killed at every crash point under a continuous load; one verdict covers the whole run."""

import os
import signal
import time
from typing import Any

import pytest

from tests.faults.crash_run import RECOVERING, CrashRun
from tests.processes import eventually
from tests.tail.subject import TailSubject
from thresher.delivery.crash_points import CrashPoint

# After decoding, producing and flushing; before and after the commit; dead rows written; the slot confirmed.
CRASH_POINTS = (
    CrashPoint.BEFORE_BEGIN,
    CrashPoint.PRODUCED_SOME,
    CrashPoint.FLUSHED,
    CrashPoint.BEFORE_COMMIT,
    CrashPoint.COMMITTED,
    CrashPoint.SETTLING,
    CrashPoint.SETTLED,
)
OF_DEAD = (CrashPoint.SETTLING, CrashPoint.DEAD_WRITTEN, CrashPoint.COMMITTED)
# Seen: 29 s until a tail, in transactions of 50 rows, has caught up after its downtime.
BEHIND_SECONDS = 240.0
# A confirmed position is reported to the server within a second.
_TOLD_SECONDS = 1.2


@pytest.mark.timeout(1200)
def test_a_tail_killed_anywhere_loses_repeats_and_reorders_nothing() -> None:
    with CrashRun(TailSubject()) as run:
        run.start()
        for point in CRASH_POINTS:
            kill_at(run, point, told=point is CrashPoint.SETTLED)
        for number, point in enumerate(OF_DEAD):
            run.subject.write_bad(str(number))
            kill_at(run, point)
        for point in RECOVERING:
            arrival = stop_at(run, CrashPoint.COMMITTED)
            run._write_hit(0, arrival["rows"], 0)
            run._order(0, point)
            os.kill(arrival["pid"], signal.SIGKILL)
            os.kill(run._arrived(0, point)["pid"], signal.SIGKILL)
        assert run.process is not None
        stop_at(run, CrashPoint.COMMITTED)
        run.process.kill()
        run.process.wait()
        run.start()
        bad = [b"%d" % number for number in range(len(OF_DEAD))]
        eventually(lambda: run.subject.bad() == bad, BEHIND_SECONDS, lambda: f"{run.subject.bad()}: {run.said()}")
        verdict, tally = run.verdict()
    assert verdict.ok, (verdict.line(), verdict.examples)
    assert tally.committed > 1_000
    assert tally.rolled_back > 50


@pytest.mark.timeout(600)
def test_a_tail_resumed_after_a_stop_publishes_nothing_twice() -> None:
    with CrashRun(TailSubject()) as run:
        first = run.start()
        arrival = stop_at(run, CrashPoint.BEFORE_COMMIT)
        os.kill(arrival["pid"], signal.SIGSTOP)
        os.kill(first.pid, signal.SIGSTOP)
        second = run.start(hook=None)
        history = run.subject.history
        size = history.stat().st_size
        eventually(lambda: history.stat().st_size > size + 100_000, 120, run.said)
        (run.orders / "go-0").touch()
        os.kill(arrival["pid"], signal.SIGCONT)
        os.kill(first.pid, signal.SIGCONT)
        # Exit code 3: a supervisor must not start it again.
        assert first.wait(120) == 3, run.said()
        run.process = second
        verdict, tally = run.verdict()
    assert verdict.ok, (verdict.line(), verdict.examples)
    assert tally.committed > 500


def stop_at(run: CrashRun[TailSubject], point: str) -> dict[str, Any]:
    """Stop the worker at a crash point, and return its report: process and rows in flight."""
    run._order(0, point)
    return run._arrived(0, point)


def kill_at(run: CrashRun[TailSubject], point: str, *, told: bool = False) -> None:
    """Kill the worker at a crash point."""
    arrival = stop_at(run, point)
    if told:
        time.sleep(_TOLD_SECONDS)
    os.kill(arrival["pid"], signal.SIGKILL)
