"""A random soak as a command: the schedule of a seed, the run, its verdict, and one line of JSON."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.faults import fault_schedule
from tests.faults.fault_schedule import Kinds
from tests.faults.mixed_run import MixedRun
from tests.faults.subject import MixedSubject

# The last seconds of a run without new faults: lasting faults are healed by then.
CALM_SECONDS = 10.0


def soak(
    subject: MixedSubject,
    kinds: Kinds,
    figures: Callable[[Any], Mapping[str, int]],
    *,
    minutes: float,
    seed: int,
    log: Path | None,
    nodes: int = 1,
    everything: bool = False,
    more: Callable[[], Mapping[str, Any]] = dict,
) -> int:
    """Run the soak, print its schedule, progress and verdict, and return the exit code.

    `figures` returns the counts of the verdict, and `more` further fields of the last line.
    """
    seconds = minutes * 60
    faults = list(fault_schedule.schedule(seed, seconds - CALM_SECONDS, kinds))
    print(f"seed {seed}: {len(faults)} faults in {minutes:g} minutes")
    print("\n".join(fault.line() for fault in faults), "\n", flush=True)
    began = time.monotonic()
    with MixedRun(subject, nodes=nodes, tell=lambda line: print(line, flush=True)) as run:
        try:
            run.run(faults, seconds)
            verdict = run.verdict(everything=everything)
        finally:
            if log is not None:
                log.write_bytes(run.log.read_bytes())
        outline, told = run.outline, dict(more())
    for fault, lines in verdict.examples.items():
        print(f"{fault}:", *lines, sep="\n  ")
    print(*outline.wrong, verdict.line(), sep="\n")
    good = verdict.ok and not outline.wrong
    took = {"seconds": round(time.monotonic() - began, 1)}
    last = {"ok": good, "seed": seed, "minutes": minutes, **told, **took, **outline.summary(figures(verdict))}
    print(json.dumps(last))
    return 0 if good else 1
