"""Tries to break the tail under a load that never ends; then one verdict over all of it.

    ./run soak tail --minutes N [--seed 5] [--source table|log] [--nodes 1|3]

Faults of every kind, at random, one over the other: tails killed, stopped, superseded and restarted, sessions ended,
the one that reads the slot too, Postgres and brokers stopped and killed, wires that cut and lose, topics missing and
denied, rows that can never be sent, late commits, wrong clocks. With three nodes, every topic is on all of them. The
seed gives the schedule.
"""

import argparse
import signal
import sys
from pathlib import Path

from soak.mixing.command import soak
from soak.relay import FIGURES
from tests.tail.mixed_subject import MixedTail, tail_kinds
from thresher.tail.settings import Via

# Rows a second: less than what a small machine publishes while one fault follows another.
RATE = 200.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="mix faults for so long")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--source", type=Via, choices=list(Via), default=Via.TABLE, help="what is read from the log")
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3), help="brokers")
    parser.add_argument("--log", type=Path, help="keep what the tails said in this file")
    options = parser.parse_args()
    # Broken off from outside, it still leaves nothing behind.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    tail = MixedTail(via=options.source, rate=RATE)
    return soak(
        tail,
        tail_kinds(options.nodes, options.source),
        lambda verdict: {name: getattr(verdict, name) for name in FIGURES},
        minutes=options.minutes,
        seed=options.seed,
        log=options.log,
        nodes=options.nodes,
        more=lambda: {"nodes": options.nodes, "source": options.source, "rows": tail.end_load().committed},
    )


if __name__ == "__main__":
    sys.exit(main())
