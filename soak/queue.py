"""Tries to break queues under a load that never ends; then one verdict over all of it.

    ./run soak queue [--minutes 5] [--seed 5]

Producers send to several queues. Consumers come, kill themselves at crash points, are killed, stopped and ended; the
broker is killed, restarted and paused; the wire is cut and delayed, and loses requests and answers; partitions are
added; Starts are refused. The seed gives the schedule: the same one again.
"""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from tests.faults import fault_schedule
from tests.faults.mixed_run import MixedRun
from tests.queue.mixed_subject import MixedQueues, queue_kinds

# Messages a second: less than what a small machine receives while one fault follows another.
RATE = 80.0
# What a run is left alone for in its end: faults that last are healed by then.
CALM_SECONDS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--log", type=Path, help="keep what the consumers said in this file")
    options = parser.parse_args()
    # Broken off from outside, it still leaves nothing behind.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    seconds = options.minutes * 60
    faults = list(fault_schedule.schedule(options.seed, seconds - CALM_SECONDS, queue_kinds()))
    print(f"seed {options.seed}: {len(faults)} faults in {options.minutes:g} minutes")
    print("\n".join(fault.line() for fault in faults), "\n", flush=True)
    began = time.monotonic()
    queues = MixedQueues(rate=RATE)
    with MixedRun(queues, tell=lambda line: print(line, flush=True)) as run:
        try:
            run.run(faults, seconds)
            verdict = run.verdict()
        finally:
            if options.log is not None:
                options.log.write_bytes(run.log.read_bytes())
        outline = run.outline
    for fault, lines in verdict.examples.items():
        print(f"{fault}:", *lines, sep="\n  ")
    print(*outline.wrong, verdict.line(), sep="\n")
    good = verdict.ok and not outline.wrong
    told = {
        "ok": good,
        "seed": options.seed,
        "minutes": options.minutes,
        "seconds": round(time.monotonic() - began, 1),
        **outline.summary(queues.figures()),
    }
    print(json.dumps(told))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
