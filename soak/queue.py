"""Tries to break queues under a continuous load; one verdict covers the whole run.

    ./run soak queue [--minutes 5] [--seed 5] [--without-tracker]

Producers send to several queues. Consumers are started, kill themselves at crash points, are killed, stopped and ended,
and so are two trackers, their JVMs and their workers. The broker is killed, restarted and paused; connections are cut
and delayed, and lose requests and answers; partitions are added; Starts are refused. In the end every message must be
processed or a dead letter. Without a tracker, each message must be started once. A seed repeats its schedule.
"""

import argparse
import signal
import sys
from pathlib import Path

from soak.mixing.command import soak
from tests.queue.mixed_subject import MixedQueues, queue_kinds
from tests.tracker.mixed_subject import TrackedQueues, tracked_kinds

# Messages a second: less than a small machine receives under constant faults.
RATE = 80.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--without-tracker", action="store_true")
    parser.add_argument("--log", type=Path, help="write the consumers' log to this file")
    options = parser.parse_args()
    # At SIGTERM, the servers and programs are removed too.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    queues = MixedQueues(rate=RATE) if options.without_tracker else TrackedQueues(rate=RATE)
    return soak(
        queues,
        queue_kinds() if options.without_tracker else tracked_kinds(),
        lambda _: queues.figures(),
        minutes=options.minutes,
        seed=options.seed,
        log=options.log,
    )


if __name__ == "__main__":
    sys.exit(main())
