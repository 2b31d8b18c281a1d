"""A relay behind a proxy that loses, delays and cuts at random, under a continuous load; then one verdict.

    ./run soak wire [--minutes 10] [--seed 6] [--nodes 1|3]

A seed repeats its faults: the n-th request or answer of a kind meets the same one again. With three nodes, one node
after another is also killed and restarted, and leaders and coordinators move.
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.faults.proxied import proxied_broker, proxies_of
from tests.faults.wire import ALL, Storm, Wire
from tests.processes import eventually
from tests.relay.load import Load
from tests.relay.relaying import Place, Relaying
from thresher.devstack import ports
from thresher.devstack.stack import Stack

SHARDS = 4
PROPERTIES = {
    "leader.imbalance.check.interval.seconds": "1",
    "leader.imbalance.per.broker.percentage": "0",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--nodes", type=int, default=1, choices=(1, 3))
    options = parser.parse_args()
    ways = tuple(ports.free_port() for _ in range(options.nodes))
    kafka = proxied_broker(*ways, properties=PROPERTIES)
    began = time.monotonic()
    with contextlib.ExitStack() as scene:
        directory = Path(scene.enter_context(tempfile.TemporaryDirectory(prefix="thresher-soak-")))
        stack = scene.enter_context(Stack(kafka=kafka))
        proxies = list(scene.enter_context(proxies_of(stack.kafka, ways)).values())
        place = Place(stack, stack.postgres.create_database("soak"), "soak-")
        bootstrap = ",".join(proxy.address for proxy in proxies)
        relay = scene.enter_context(place.relaying(shards=SHARDS, kafka={"bootstrap.servers": bootstrap}))
        load = scene.enter_context(Load(place, directory, writers=3, rate=400.0))
        relay.until(lambda: relay.total("relayed"), 120)
        storms = [
            Storm(Wire(proxy, place.settings().name), options.seed + number, gap=200, faults=ALL)
            for number, proxy in enumerate(proxies)
        ]
        rage(options.seed, began + 60 * options.minutes, stack, relay, storms)
        for storm in storms:
            storm.end()
        load.end(300)
        tally = load.tally
        verdict = load.verdict()
    met = Counter(f"{fault.what} {fault.api.name}" for storm in storms for fault in storm.met)
    for what, count in sorted(met.items()):
        print(f"{what:32} {count:5}")
    print(verdict.line())
    for lines in verdict.examples.values():
        print("\n".join(lines))
    print(
        json.dumps(
            {
                "ok": verdict.ok,
                "faults": sum(met.values()),
                "rows": tally.committed,
                "seconds": round(time.monotonic() - began, 1),
                "seed": options.seed,
                "nodes": options.nodes,
            }
        )
    )
    return 0 if verdict.ok else 1


def rage(seed: int, until: float, stack: Stack, relay: Relaying, storms: list[Storm]) -> None:
    """Report progress until the time is over; with several nodes, kill and restart one after another."""
    draw = random.Random(f"{seed}/nodes")  # noqa: S311 - a schedule, not a secret
    while time.monotonic() < until:
        time.sleep(draw.uniform(5.0, 15.0))
        if len(stack.kafka.nodes) > 1:
            node = draw.choice(list(stack.kafka.nodes))
            stack.kafka.nodes[node].kill()
            time.sleep(draw.uniform(5.0, 15.0))
            stack.kafka.start_node(node)
        before = relay.total("relayed")
        eventually(lambda at=before: relay.total("relayed") > at, 180, lambda: str(relay.relay.snapshot()))  # type: ignore[misc]
        print(
            f"{until - time.monotonic():.0f} s left, relayed {relay.total('relayed'):.0f}, restarts "
            f"{[shard.restarts for shard in relay.shards]}, faults {sum(len(storm.met) for storm in storms)}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
