"""Tries to break the relay under a continuous load; one verdict covers the whole run.

    ./run soak relay [--hits 100] [--seed 5] [--from ROUND]     kills at every crash point, many times
    ./run soak relay --minutes N [--seed 5] [--nodes 1|3]       faults of every kind, at random and overlapping
    ./run soak relay --minutes N --backlog 500000               the same with 2,000 keys, a backlog, and bursts

    ./run soak relay --minutes N --coordination topic-lock      the same with processes that share topics by locks

With --minutes, --election neli lets two or three relays compete with default time-outs, and disturbs their election.
With --delivery at-least-once, readers of all records are checked: a record may repeat, before the next of its key. With
three nodes, every topic has three replicas, and faults of brokers hit one at a time. A backlog is read by windows, and
in each burst some rows commit late; no row is large, because a table that has held a large row is not read by windows.
A seed repeats its schedule. --from continues an interrupted run at a round.
"""

import argparse
import itertools
import json
import signal
import sys
import time
from pathlib import Path

from soak.mixing.command import soak
from tests.faults.crash_run import CRASH_POINTS, CrashRun, schedule
from tests.relay.elected_subject import ElectedRelay, elected_kinds
from tests.relay.locking_subject import LockingRelay, locking_kinds
from tests.relay.mixed_subject import MixedRelay, relay_kinds
from tests.relay.subject import RelaySubject
from thresher.relay.settings import Delivery

# Rows a second, by guarantee and nodes: less than a small machine relays under constant faults. At least once, a key
# has one row in flight: 230 rows a second were seen with three nodes.
RATES = {
    (Delivery.EXACTLY_ONCE, 1): 400.0,
    (Delivery.EXACTLY_ONCE, 3): 400.0,
    (Delivery.AT_LEAST_ONCE, 1): 200.0,
    (Delivery.AT_LEAST_ONCE, 3): 100.0,
}
# Lower, because several processes share a small machine.
LOCKING_RATE = 150.0
FIGURES = (
    "committed", "rolled_back", "unknown", "read", "repeated", "dead", "filtered", "lost", "phantom", "duplicated",
    "reordered", "altered",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hits", type=int, default=100, help="kills per crash point")
    parser.add_argument("--minutes", type=float, help="minutes to run with faults of every kind")
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3), help="brokers, with --minutes")
    parser.add_argument("--backlog", type=int, default=0, help="rows before the first relay starts, with --minutes")
    parser.add_argument("--election", choices=("none", "neli"), default="none", help="with --minutes")
    parser.add_argument("--coordination", choices=("leader", "topic-lock"), default="leader", help="with --minutes")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--log", type=Path, help="write the relays' log to this file, with --minutes")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the number of the first round")
    parser.add_argument("--delivery", type=Delivery, choices=list(Delivery), default=Delivery.EXACTLY_ONCE)
    options = parser.parse_args()
    if options.minutes is None and options.nodes > 1:
        parser.error("--nodes: kills at crash points use one broker; for several, give --minutes")
    if options.minutes is None and options.backlog:
        parser.error("--backlog: it needs --minutes")
    if options.minutes is None and options.election != "none":
        parser.error("--election: it needs --minutes")
    by_locks = options.coordination == "topic-lock"
    if by_locks and (options.minutes is None or options.backlog or options.election != "none"):
        parser.error("--coordination topic-lock: it needs --minutes, and has neither a backlog nor an election")
    if by_locks and options.delivery is Delivery.AT_LEAST_ONCE:
        parser.error("--coordination topic-lock: it promises exactly-once")
    # At SIGTERM, the servers and programs are removed too.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    return at_crash_points(options) if options.minutes is None else mixed(options)


def mixed(options: argparse.Namespace) -> int:
    rate = RATES[options.delivery, options.nodes]
    elected = options.election == "neli"
    relay: MixedRelay
    if elected:
        relay = ElectedRelay(rate=rate, delivery=options.delivery)
        kinds = elected_kinds(options.nodes)
    elif options.coordination == "topic-lock":
        relay = LockingRelay(rate=LOCKING_RATE)
        kinds = locking_kinds(options.nodes)
    else:
        relay = MixedRelay(rate=rate, delivery=options.delivery, backlog=options.backlog)
        kinds = relay_kinds(options.nodes, backlog=options.backlog > 0)
    return soak(
        relay,
        kinds,
        lambda verdict: {name: getattr(verdict, name) for name in FIGURES},
        minutes=options.minutes,
        seed=options.seed,
        log=options.log,
        nodes=options.nodes,
        everything=options.delivery is Delivery.AT_LEAST_ONCE,
        more=lambda: {
            "nodes": options.nodes,
            "delivery": options.delivery,
            "backlog": options.backlog,
            "election": options.election,
            "coordination": options.coordination,
            "rows": relay.end_load().committed,
        },
    )


def at_crash_points(options: argparse.Namespace) -> int:
    rounds = list(schedule(options.seed, options.hits, RelaySubject.shards))
    began = time.monotonic()
    with CrashRun(RelaySubject(delivery=options.delivery)) as run:
        for number, (victim, orders) in itertools.islice(enumerate(rounds), options.first, None):
            run.round(victim, orders)
            print(
                f"seed {options.seed}, round {number + 1} of {len(rounds)}: {victim} at "
                f"{', '.join(sorted(orders.values()))}; {time.monotonic() - began:.0f} s, wrong so far: "
                f"{len(run.report.wrong)}",
                flush=True,
            )
        verdict, tally = run.verdict(everything=options.delivery is Delivery.AT_LEAST_ONCE)
    print("\n".join([*run.report.lines(), *run.report.wrong, verdict.line()]))
    never = [point for point in CRASH_POINTS if not run.report.counted()[point]]
    good = verdict.ok and not run.report.wrong and not never
    print(
        json.dumps(
            {
                "ok": good,
                "hits": dict(run.report.counted()),
                "never": never,
                "rows": tally.committed,
                "seconds": round(time.monotonic() - began, 1),
                "seed": options.seed,
            }
        )
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
