"""The tail is killed at every crash point under a continuous load, and stopped, replaced and resumed."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults import crash_hook
from tests.faults.crash_run import RECOVERING
from tests.faults.orders import PATIENT, Orders
from tests.faults.program import Program
from tests.faults.zombie import Zombie
from tests.processes import eventually
from tests.relay.load import Load
from tests.relay.relaying import POLICY
from tests.tail.tailing import TailPlace
from thresher.delivery.crash_points import CrashPoint
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.spark.session.session import Session

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
# Seen: 3 s until a successor has published the rows of its predecessor's downtime.
BEHIND_SECONDS = 60.0
# A confirmed position is reported to the server within a second.
_TOLD_SECONDS = 1.2
_RATE = 60.0
# A tail in the test process: it starts over at once, and only the test ends its worker. Published rows are deleted.
TAILING: dict[str, Any] = {
    "policy": replace(POLICY, back_off_seconds=0.1, back_off_most_seconds=1.0, **PATIENT),
    "limits": {"batch_rows": 50, "grace_seconds": 0.5},
    "keep_seconds": 0.0,
}


@pytest.fixture
def at(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> TailPlace:
    return TailPlace(stack, dsn, topic_prefix)


def program(at: TailPlace) -> Program:
    """Return the tail as a program."""
    bootstrap = at.stack.kafka.bootstrap
    given = {"name": at.settings().name, "dsn": at.dsn, "bootstrap": bootstrap, "slot": at.slot}
    return Program(module="tests.tail.program", settings=given)


@pytest.mark.timeout(600)
def test_a_tail_killed_anywhere_loses_repeats_and_reorders_nothing(at: TailPlace, tmp_path: Path) -> None:
    bad = [b"%d" % number for number in range(len(OF_DEAD))]
    try:
        with Load(at, tmp_path, rate=_RATE) as load, Orders.of_the_run() as orders:
            # The driver.
            points = {0: CrashPoint.COMMITTED}
            with Zombie(program(at), tmp_path / "driver", victim="driver", points=points) as driver:
                driver.arrive()
                driver.process.kill()
            # Its successor's workers.
            with at.tailing(hook=crash_hook.HOOK, **TAILING) as tailing:
                for point in CRASH_POINTS:
                    kill_at(orders, point, told=point is CrashPoint.SETTLED)
                for value, point in zip(bad, OF_DEAD, strict=True):
                    at.stash(Message(topic=f"{at.prefix}missing", key="k", value=value))
                    kill_at(orders, point)
                for point in RECOVERING:
                    arrival = stop_at(orders, CrashPoint.COMMITTED)
                    orders.expect_recovery(0, arrival["rows"])
                    orders.stop(0, point)
                    os.kill(arrival["pid"], signal.SIGKILL)
                    os.kill(orders.arrived(0, point)["pid"], signal.SIGKILL)
                tailing.until(lambda: [row[4] for row in at.dead()] == bad, BEHIND_SECONDS)
                load.end(BEHIND_SECONDS)
    finally:
        at.drop_slot()
    verdict = load.verdict()
    assert verdict.ok, (verdict.line(), verdict.examples)
    assert load.tally.committed > 500
    assert load.tally.rolled_back > 20


@pytest.mark.timeout(300)
def test_a_tail_resumed_after_a_stop_publishes_nothing_twice(at: TailPlace, tmp_path: Path) -> None:
    points = {0: CrashPoint.BEFORE_COMMIT}
    try:
        with (
            Load(at, tmp_path, rate=_RATE) as load,
            Zombie(program(at), tmp_path / "zombie", victim="whole", points=points) as zombie,
        ):
            zombie.arrive()
            zombie.stop()
            with at.tailing(**TAILING) as successor:
                last = at.sql("SELECT max(id) FROM outbox")[0][0]
                published = f"SELECT min(id) > {last} FROM outbox"
                eventually(lambda: at.sql(published) == [(True,)], BEHIND_SECONDS)
                zombie.go_on()
                # Exit code 3: a supervisor must not start it again.
                assert zombie.process.wait(120) == 3, zombie.said()
                load.end(BEHIND_SECONDS)
                assert not any("fenced" in str(shard.last_error) for shard in successor.shards)
    finally:
        at.drop_slot()
    load.require_clean(100)


def stop_at(orders: Orders, point: str) -> dict[str, Any]:
    """Stop the worker at a crash point, and return its report: process and rows in flight."""
    orders.stop(0, point)
    return orders.arrived(0, point)


def kill_at(orders: Orders, point: str, *, told: bool = False) -> None:
    """Kill the worker at a crash point."""
    arrival = stop_at(orders, point)
    if told:
        time.sleep(_TOLD_SECONDS)
    os.kill(arrival["pid"], signal.SIGKILL)
