"""The relay is killed at every crash point under a continuous load; one verdict covers the whole run."""

import signal
import time

import psycopg
import pytest

from tests.faults.crash_run import CRASH_POINTS, GROUPS, VICTIMS, CrashRun, short_schedule
from tests.faults.scene import END_SECONDS
from tests.processes import eventually
from tests.relay.subject import RelaySubject
from thresher.delivery.crash_points import CrashPoint
from thresher.kafka.admin import cluster_at
from thresher.relay.settings import Delivery

# Each crash point is hit once by the death of a worker, and once by that of the driver or its JVM.
HITS = 2


@pytest.mark.timeout(1800)
def test_a_relay_killed_anywhere_loses_repeats_and_reorders_nothing() -> None:
    with CrashRun(RelaySubject()) as run:
        # `./run soak relay` kills every victim at every crash point, many more times.
        for victim, orders in short_schedule(seed=5, hits=HITS, shards=RelaySubject.shards):
            run.round(victim, orders)
        two_relays(run)
        servers(run)
        verdict, tally = run.verdict()
    assert verdict.ok, (verdict.line(), verdict.examples)
    assert tally.committed > 3_000
    assert tally.rolled_back > 100
    assert not run.report.wrong, run.report.wrong
    assert all(run.report.counted()[point] >= HITS for point in CRASH_POINTS), run.report.lines()
    for group in GROUPS:
        assert {hit.victim for hit in run.report.hits if hit.point in group} == set(VICTIMS), run.report.lines()
    # A relay whose JVM was killed ends with the exit code for "start it again".
    assert set(run.exits) == {1}


@pytest.mark.timeout(1200)
def test_at_least_once_kills_cause_only_adjacent_duplicates() -> None:
    relay = RelaySubject(delivery=Delivery.AT_LEAST_ONCE, rate=200.0)
    with CrashRun(relay) as run:
        # `./run soak relay --delivery at-least-once` kills every victim at every crash point, many more times.
        for orders in (CRASH_POINTS[0:4], CRASH_POINTS[4:8], CRASH_POINTS[8:12]):
            run.round("worker", dict(enumerate(orders)))
        verdict, tally = run.verdict(everything=True)
        assert verdict.ok, (verdict.line(), verdict.examples)
        assert verdict.repeated
        assert tally.committed > 1_000
        assert not run.report.wrong, run.report.wrong
        assert all(run.report.counted()[point] for point in CRASH_POINTS), run.report.lines()
        # From one guarantee to the other and back; each relay is killed with rows in flight.
        relay.begin_load()
        run.start()
        for delivery in (Delivery.EXACTLY_ONCE, Delivery.AT_LEAST_ONCE):
            relay.delivery = delivery
            run.round(
                "driver",
                {0: CrashPoint.FLUSHED, 1: CrashPoint.COMMITTED, 2: CrashPoint.SETTLING, 3: CrashPoint.PRODUCED_SOME},
            )
        verdict, _ = run.verdict()
    # A reader of committed records has seen no row twice, under either guarantee.
    assert verdict.ok, (verdict.line(), verdict.examples)


def two_relays(run: CrashRun[RelaySubject]) -> None:
    """Start two relays together: the newer term goes on, and the older relay ends with exit code 3."""
    first = run.process or run.start()
    second = run.start()
    codes: dict[int, int] = {}

    def one_left() -> bool:
        for process in (first, second):
            if process.poll() is not None:
                codes[process.pid] = process.returncode
        return bool(codes)

    eventually(one_left, 150, run.said)
    assert list(codes.values()) == [3], run.said()
    run.process = second if first.pid in codes else first
    moves(run)


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
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(END_SECONDS) == 0
    run.start(hook=None)
    moves(run)


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
