"""Tries to break the tail under a continuous load; one verdict covers the whole run.

    ./run soak tail --minutes N [--seed 5] [--source table|log] [--nodes 1|3]

Faults of every kind, at random and overlapping. Tails are killed, stopped, superseded and restarted; sessions are
ended, also the one that reads the slot; Postgres and brokers are stopped and killed; connections are cut and lose
frames; topics are missing or denied; rows can never be sent; commits are late; clocks are wrong. With three nodes,
every topic has three replicas. A seed repeats its schedule.
"""

import argparse
import signal
import sys
from pathlib import Path

from soak.mixing.command import soak
from soak.relay import FIGURES
from tests.tail.mixed_subject import MixedTail, tail_kinds
from thresher.tail.settings import Via

# Rows a second: less than a small machine publishes under constant faults.
RATE = 200.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes to run")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument(
        "--source",
        type=Via,
        choices=list(Via),
        default=Via.TABLE,
        help="the source of the tail: a table, or messages in the WAL",
    )
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3), help="brokers")
    parser.add_argument("--log", type=Path, help="write the tails' log to this file")
    options = parser.parse_args()
    # At SIGTERM, the servers and programs are removed too.
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
