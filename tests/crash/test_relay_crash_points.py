"""The relay is killed at every crash point under a continuous load; one verdict covers the whole run."""

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.faults import crash_hook
from tests.faults.crash_hook import COMMIT_SENT
from tests.faults.crash_run import BEFORE_COMMIT, GROUPS, PLAIN, RECOVERING, VICTIMS, CrashRun, short_schedule
from tests.faults.orders import PATIENT, Orders
from tests.faults.zombie import Zombie
from tests.processes import eventually
from tests.relay.load import Load
from tests.relay.relay_program import DSN, LEFT, relay_of
from tests.relay.relaying import POLICY, Place
from tests.relay.subject import RelaySubject
from thresher.core.errors import Superseded
from thresher.delivery.crash_points import CrashPoint
from thresher.devstack.stack import Stack
from thresher.kafka.admin import cluster_at
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session

# Rows per second: enough for each of the shards to have some in flight.
RATE = 80.0
PLAIN_POINTS = [str(point) for point in PLAIN if point != COMMIT_SENT]
# A relay in the test process: it starts over at once, and only the test ends its workers.
RELAYING: dict[str, Any] = {
    "shards": 4,
    "policy": replace(POLICY, back_off_seconds=0.1, back_off_most_seconds=1.0, **PATIENT),
    "limits": {"batch_rows": 200},
}


@pytest.fixture
def at(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


@pytest.mark.timeout(1800)
def test_a_relay_killed_anywhere_loses_repeats_and_reorders_nothing() -> None:
    with CrashRun(RelaySubject(rate=RATE)) as run:
        # `./run soak relay` kills every victim at every crash point, many more times.
        for victim, orders in short_schedule(seed=5, shards=RelaySubject.shards):
            run.round(victim, orders)
        servers(run)
        verdict, tally = run.verdict()
    assert verdict.ok, (verdict.line(), verdict.examples)
    assert tally.committed > 500
    assert tally.rolled_back > 20
    assert not run.report.wrong, run.report.wrong
    assert all("worker" in victims for victims in run.report.victims().values()), run.report.lines()
    for group in GROUPS:
        assert {hit.victim for hit in run.report.hits if hit.point in group} == set(VICTIMS), run.report.lines()
    # A relay whose JVM was killed ends with the exit code for "start it again".
    assert set(run.exits) == {1}


@pytest.mark.timeout(600)
def test_at_least_once_kills_cause_only_adjacent_duplicates(at: Place, tmp_path: Path) -> None:
    # `./run soak relay --delivery at-least-once` kills every victim at every crash point, many more times. Commits
    # without an answer are in `test_relay_wire`.
    points = [*PLAIN_POINTS, *RECOVERING]
    with (
        Load(at, tmp_path, rate=RATE, own_keys=True) as load,
        Orders.of_the_run(LEFT, **{DSN: at.dsn}) as orders,
        at.relaying(delivery=Delivery.AT_LEAST_ONCE, hook=crash_hook.HOOK, **RELAYING),
    ):
        kills: list[str] = []
        for first in range(0, len(points), RELAYING["shards"]):
            kill_workers(orders, dict(enumerate(points[first : first + RELAYING["shards"]])), kills)
        load.end()
        # Recovery purges the rows of a committed transaction, and no others.
        left = {kills[line["number"]]: (line["left"], line["of"]) for line in orders.recoveries()}
        assert left.keys() == {*PLAIN_POINTS, *RECOVERING}
        assert all(count == (of if point in BEFORE_COMMIT else 0) for point, (count, of) in left.items()), left
    assert load.require_clean(150, everything=True).repeated


@pytest.mark.timeout(600)
def test_rows_of_killed_relays_survive_changes_of_the_guarantee(at: Place, tmp_path: Path) -> None:
    points = {0: CrashPoint.FLUSHED, 1: CrashPoint.COMMITTED, 2: CrashPoint.SETTLING, 3: CrashPoint.PRODUCED_SOME}
    program = relay_of(at, delivery=Delivery.AT_LEAST_ONCE)
    # Overlapping transactions have no order: their rows may come between a record and its repeat.
    with Load(at, tmp_path, rate=RATE, own_keys=True) as load, Orders.of_the_run() as orders:
        with Zombie(program, tmp_path / "killed", victim="driver", points=points) as killed:
            killed.arrive()
            killed.process.kill()
        with at.relaying(hook=crash_hook.HOOK, **RELAYING) as exact:
            workers = stopped_workers(orders, points)
            # Back to the first guarantee, while rows are in flight.
            with at.relaying(shards=2, delivery=Delivery.AT_LEAST_ONCE) as last:
                last.until(lambda: last.relay.term)
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
                assert isinstance(exact.ended(), Superseded)
                load.end()
    # A reader of committed records has seen no row twice, under either guarantee.
    load.require_clean(100)


def stopped_workers(orders: Orders, points: Mapping[int, str]) -> list[int]:
    """Stop a worker with rows in flight at each crash point; return them."""
    for shard, point in points.items():
        orders.stop(shard, point)
    arrivals = [orders.arrived(shard, point) for shard, point in points.items()]
    assert all(arrival["rows"] or arrival["point"] in RECOVERING for arrival in arrivals), arrivals
    return [arrival["pid"] for arrival in arrivals]


def kill_workers(orders: Orders, points: Mapping[int, str], kills: list[str]) -> None:
    """Kill a worker at each crash point. A kill in a recovery follows a kill after a commit: there are rows to settle.

    The number of a kill with rows in flight is its place in `kills`, which gets the crash point.
    """

    def kill(shard: int, point: str, arrival: Mapping[str, Any]) -> None:
        if arrival["rows"]:
            orders.expect_recovery(shard, arrival["rows"], len(kills))
            kills.append(point)
        os.kill(arrival["pid"], signal.SIGKILL)

    recovering = {shard: point for shard, point in points.items() if point in RECOVERING}
    for shard, point in recovering.items():
        orders.stop(shard, CrashPoint.COMMITTED)
        arrival = orders.arrived(shard, CrashPoint.COMMITTED)
        orders.stop(shard, point)
        kill(shard, point, arrival)
    for shard in points.keys() - recovering.keys():
        orders.stop(shard, points[shard])
    for shard, point in points.items():
        arrival = orders.arrived(shard, point)
        assert arrival["rows"] or point in RECOVERING, arrival
        kill(shard, point, arrival)


def servers(run: CrashRun[RelaySubject]) -> None:
    """Kill the servers and start them again: the relay goes on by itself."""
    with psycopg.connect(run.stack.postgres.dsn(), autocommit=True) as connection:
        for _ in range(3):
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'thresher/%'"
            )
            time.sleep(0.3)
    moves(run)
    run.stack.postgres.server.kill()
    run.stack.postgres.start()
    moves(run)
    run.stack.kafka.nodes[1].kill()
    eventually(lambda: cluster_at(run.stack.kafka.bootstrap) is None, 60)
    time.sleep(1.0)
    run.stack.kafka.start_node(1)
    moves(run)
    assert run.process is not None
    assert run.process.poll() is None, run.said()


def moves(run: CrashRun[RelaySubject], seconds: float = 150.0) -> None:
    """Wait until rows are there, and then until these rows are gone."""
    newest = 0
    with psycopg.connect(run.subject.dsn, autocommit=True) as connection:

        def there() -> bool:
            nonlocal newest
            row = connection.execute("SELECT coalesce(max(id), 0) FROM outbox").fetchone()
            newest = int(row[0]) if row else 0
            return newest > 0

        eventually(there, 60)

        def gone() -> bool:
            row = connection.execute("SELECT count(*) FROM outbox WHERE id <= %s", [newest]).fetchone()
            return row is not None and row[0] == 0

        eventually(gone, seconds, run.said)
