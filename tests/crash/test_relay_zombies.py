"""Relays that were stopped, replaced and resumed: their rows in flight reach neither Kafka nor the database.

The longest time-out that could help a zombie or its successor is the broker's transaction time-out, 15 s. All zombies
are stopped for longer.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.faults import stalling
from tests.faults.orders import PATIENT
from tests.faults.zombie import Zombie
from tests.processes import eventually, is_stopped
from tests.relay.load import Load
from tests.relay.relay_program import relay_of
from tests.relay.relaying import POLICY, Place, Relaying
from thresher.core.errors import Superseded
from thresher.delivery.crash_points import CrashPoint
from thresher.delivery.names import progress_topic, sessions
from thresher.delivery.problem import ForeignProgress
from thresher.delivery.progress_topic.seal import Seal
from thresher.delivery.row import RowList
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.protocol.progress import Origin, encode, progress_of
from thresher.relay.settings import Delivery
from thresher.spark.session.session import Session

STOPPED_SECONDS = 17.0
pytestmark = pytest.mark.timeout(400)
# The crash points of the shards of a stopped program.
POINTS = {0: CrashPoint.BEFORE_COMMIT, 1: CrashPoint.SETTLING, 2: CrashPoint.PRODUCED_SOME}
# The crash points of stopped workers on the run's Spark.
WORKERS: dict[Delivery, dict[int, CrashPoint]] = {
    Delivery.EXACTLY_ONCE: {0: CrashPoint.COMMITTED, 1: CrashPoint.FLUSHED, 2: CrashPoint.BEFORE_BEGIN},
    # One shard has unsent rows in its client, the other has rows to purge.
    Delivery.AT_LEAST_ONCE: {0: CrashPoint.PRODUCED_SOME, 1: CrashPoint.COMMITTED},
}
# Rows per second: enough for a few in each transaction.
RATE = 30.0


@pytest.fixture
def places(stack: Stack, spark: Session, topic_prefix: str) -> Callable[[str], Place]:
    def make(name: str) -> Place:
        dsn = stack.postgres.create_database(f"{topic_prefix}{name}".replace("-", "_"))
        return Place(stack, dsn, f"{topic_prefix}{name}-")

    return make


def held_by_others(place: Place, term: str | None) -> list[str]:
    """Return the relay's database sessions that are not of this term."""
    name = place.settings().name
    found = place.sql(
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s",
        f"{sessions(name)}%",
    )
    return [row[0] for row in found if term is None or not row[0].startswith(sessions(name, term))]


def nobody_else(place: Place, relay: Relaying) -> bool:
    return not held_by_others(place, relay.relay.term)


def moves(place: Place, relay: Relaying) -> None:
    """Wait until this relay has sent rows, and until all rows that are pending now are gone."""
    last = place.sql("SELECT coalesce(max(id), 0) FROM outbox")[0][0]
    # Seen: 13 s, four successors starting at once on two busy cores.
    relay.until(
        lambda: relay.total("relayed") and not place.sql("SELECT 1 FROM outbox WHERE id <= %s LIMIT 1", last), 150
    )


def takes_over(place: Place, successor: Relaying) -> None:
    """Wait until this relay works, and until no session of another term is left.

    The take-over ends the zombie's sessions, so nothing waits for its row locks. A part of the zombie that was not
    stopped may connect once more, and then ends too.
    """
    moves(place, successor)
    successor.until(partial(nobody_else, place, successor), 15)


def not_fenced(successor: Relaying) -> None:
    """Check that a zombie did not fence its successor."""
    assert not any("fenced" in str(shard.last_error) for shard in successor.shards)


def test_a_resumed_zombie_relay_sends_and_settles_nothing(places: Callable[[str], Place], tmp_path: Path) -> None:
    at = places("program")
    zombie = Zombie(relay_of(at), tmp_path / "zombie", victim="whole", points=POINTS)
    with Load(at, tmp_path, writers=1, rate=RATE) as load, zombie:
        assert all(arrival["rows"] for arrival in zombie.arrive().values())
        zombie.stop()
        stopped = time.monotonic()
        with at.relaying(shards=1) as successor:
            takes_over(at, successor)
            eventually(lambda: time.monotonic() - stopped > STOPPED_SECONDS, STOPPED_SECONDS)
            # At first, the zombie's driver cannot stop its workers: only the servers can refuse them.
            zombie.go_on("worker")
            time.sleep(3.0)
            # Then, its driver has a JVM that does not answer.
            zombie.go_on("driver")
            time.sleep(1.0)
            zombie.go_on()
            assert zombie.process.wait(180) == 3, zombie.said()
            load.end()
            not_fenced(successor)
    load.require_clean(100)


@pytest.mark.parametrize("delivery", WORKERS)
def test_resumed_zombie_workers_send_and_settle_nothing(
    places: Callable[[str], Place], tmp_path: Path, delivery: Delivery
) -> None:
    at, points = places("workers"), WORKERS[delivery]
    zombie = at.relaying(
        shards=len(points),
        delivery=delivery,
        hook=stalling.HOOK,
        policy=replace(POLICY, **PATIENT),
        limits={"batch_rows": 50},
    )
    with Load(at, tmp_path, writers=1, rate=RATE) as load, zombie, contextlib.ExitStack() as held:
        held.enter_context(stalling.stalled(points, lambda: None))
        workers = [zombie.pid(shard) for shard in points]
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
            held.callback(os.kill, worker, signal.SIGCONT)
        stopped = time.monotonic()
        with at.relaying(shards=2, delivery=delivery) as successor:
            takes_over(at, successor)
            eventually(lambda: time.monotonic() - stopped > STOPPED_SECONDS, STOPPED_SECONDS)
            # The older leader has not killed them: they go on in the middle of their work.
            assert all(map(is_stopped, workers))
            held.close()
            assert isinstance(zombie.ended(), Superseded)
            load.end()
            not_fenced(successor)
    # Even a reader of all records sees nothing of the rows that the at-least-once client still had.
    load.require_clean(100, everything=delivery is Delivery.AT_LEAST_ONCE)


def test_leaders_take_over_from_other_numbers_of_shards(places: Callable[[str], Place], tmp_path: Path) -> None:
    at = places("layouts")
    with Load(at, tmp_path, rate=RATE) as load, contextlib.ExitStack() as scene:
        older: list[Relaying] = []
        for shards in (2, 3, 1):
            newer = scene.enter_context(at.relaying(shards=shards))
            moves(at, newer)
            for relay in older:
                assert isinstance(relay.ended(), Superseded)
            older = [newer]
        # Started together: one of them leads in the end, and the others end as superseded.
        older += [scene.enter_context(at.relaying(shards=shards)) for shards in (2, 1)]
        eventually(lambda: sum(relay.error is None for relay in older) == 1, 120, lambda: str([r.error for r in older]))
        (leader,) = [relay for relay in older if relay.error is None]
        moves(at, leader)
        assert all(isinstance(relay.ended(), Superseded) for relay in older if relay is not leader)
        load.end()
        assert at.sql("SELECT shards FROM thresher_relay") == [(leader.relay.workload.shards,)]
    load.require_clean(100)


def test_progress_of_a_newer_version_is_refused_before_take_over(places: Callable[[str], Place]) -> None:
    at = places("versions")
    rows = [Message(topic=at.topic, key=f"k{n % 5}", value=str(n)) for n in range(100)]
    at.stash(*rows[:50])
    with at.relaying(shards=1) as relay:
        relay.until(lambda: at.pending() == 0)
    recorded = at.sql("SELECT * FROM thresher_relay")
    at.stash(*rows[50:])
    last = progress_of(Origin(outbox_id=outbox_id(at), system_id="", incarnation="", term="", shard=0), 9, RowList(), 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("thresher.relay.protocol.progress._VERSION", "2")
        note(at, encode(last))
    with at.relaying(shards=1) as older:
        refused = older.ended()
    assert isinstance(refused, ForeignProgress)
    assert "version '2'" in str(refused)
    assert refused.exit_code == 4
    # The control row is unchanged, so a leader would not be disturbed; and nothing was sent.
    assert at.sql("SELECT * FROM thresher_relay") == recorded
    assert at.pending() == 50
    at.read(50)


def test_a_layout_of_another_mode_is_fenced_and_taken_over(places: Callable[[str], Place]) -> None:
    at = places("modes")
    rows = [Message(topic=at.topic, key=f"k{n % 5}", value=str(n)) for n in range(100)]
    at.stash(*rows[:50])
    with at.relaying(shards=2) as relay:
        relay.until(lambda: at.pending() == 0)
    at.sql("UPDATE thresher_relay SET mode = 'some-newer-mode', shards = 3")
    at.stash(*rows[50:])
    with at.relaying(shards=1) as relay:
        relay.until(lambda: at.pending() == 0)
    assert sorted(int(message.value() or b"") for message in at.read(100)) == list(range(100))
    assert at.sql("SELECT mode, shards FROM thresher_relay") == [(Delivery.EXACTLY_ONCE, 1)]


def outbox_id(place: Place) -> str:
    return str(place.sql("SELECT outbox_id FROM thresher_relay")[0][0])


def note(place: Place, record: bytes) -> None:
    """Write a record to the relay's progress partition, with its seal."""
    ((secret,),) = place.sql("SELECT secret::text FROM thresher_relay")
    seal = Seal(secret=secret, topic=progress_topic(place.settings().name), partition=0)
    producer = Producer({"bootstrap.servers": place.stack.kafka.bootstrap})
    producer.produce(seal.topic, record, partition=0, headers=[*seal.headers(b"", record)])
    assert producer.flush(60) == 0
