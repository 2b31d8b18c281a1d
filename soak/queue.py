"""Tries to break queues under a load that never ends; then one verdict over all of it.

    ./run soak queue [--minutes 5] [--seed 5] [--without-tracker]

Producers send to several queues. Consumers come, kill themselves at crash points, are killed, stopped and ended, and so
are two trackers, their Sparks and their workers; the broker is killed, restarted and paused; the wire is cut and
delayed, and loses requests and answers; partitions are added; Starts are refused. In the end every message was
processed, or is a dead letter. Without a tracker, what is judged is that each message is started once. The seed gives
the schedule: the same one again.
"""

import argparse
import signal
import sys
from pathlib import Path

from soak.mixing.command import soak
from tests.queue.mixed_subject import MixedQueues, queue_kinds
from tests.tracker.mixed_subject import TrackedQueues, tracked_kinds

# Messages a second: less than what a small machine receives while one fault follows another.
RATE = 80.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--without-tracker", action="store_true")
    parser.add_argument("--log", type=Path, help="keep what the consumers said in this file")
    options = parser.parse_args()
    # Broken off from outside, it still leaves nothing behind.
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
