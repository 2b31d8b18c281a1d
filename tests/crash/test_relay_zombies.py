"""Relays that were stopped and superseded, and go on: what they still hold in their hands reaches neither side.

The longest time-out that could help a zombie or its successor is the broker's on a transaction, 15 s: all are stopped
for longer, side by side.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import eventually
from tests.relay.load import Load
from tests.relay.relaying import Place
from tests.relay.zombie import Zombie
from thresher.devstack.stack import Stack
from thresher.relay.names import sessions
from thresher.relay.seam import Seam
from thresher.spark.session import Session

STOPPED_SECONDS = 17.0
# Who is stopped, where its shards stand, and how many shards its successor has.
ZOMBIES: dict[str, tuple[dict[int, Seam], int]] = {
    "worker": ({0: Seam.COMMITTED, 1: Seam.FLUSHED}, 2),
    "jvm": ({0: Seam.BEFORE_BEGIN, 1: Seam.BEFORE_COMMIT}, 1),
    "driver": ({0: Seam.PRODUCED_SOME, 1: Seam.SETTLING}, 1),
    "whole": ({0: Seam.BEFORE_COMMIT, 1: Seam.SETTLING}, 2),
}


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


def newest(place: Place) -> int:
    return int(place.sql("SELECT coalesce(max(id), 0) FROM outbox")[0][0])


def gone_up_to(place: Place, last: int) -> bool:
    return not place.sql("SELECT 1 FROM outbox WHERE id <= %s LIMIT 1", last)


@pytest.mark.timeout(400)
def test_a_relay_that_was_stopped_and_superseded_sends_and_settles_nothing_when_it_goes_on(
    places: Callable[[str], Place], tmp_path: Path
) -> None:
    with contextlib.ExitStack() as scene:
        loads: dict[str, Load] = {}
        zombies: dict[str, Zombie] = {}
        for victim, (seams, _) in ZOMBIES.items():
            at = places(victim)
            loads[victim] = Load(at, tmp_path, writers=1, rate=100.0)
            zombies[victim] = Zombie(at, tmp_path, victim=victim, seams=seams)
            scene.enter_context(zombies[victim])
            scene.enter_context(loads[victim])
        for zombie in zombies.values():
            assert all(arrival["rows"] for arrival in zombie.arrive().values())
        for zombie in zombies.values():
            zombie.stop()
        stopped = time.monotonic()
        successors = {
            victim: scene.enter_context(zombies[victim].place.relaying(shards=shards))
            for victim, (_, shards) in ZOMBIES.items()
        }
        for victim, zombie in zombies.items():
            at, successor = zombie.place, successors[victim]
            last = newest(at)
            successor.until(lambda at=at, last=last: gone_up_to(at, last), 60)  # type: ignore[misc]
            # Whatever the zombie held in the database, row locks too, is not waited for: it was ended.
            assert held_by_others(at, successor.relay.term) == []
        took = time.monotonic() - stopped
        eventually(lambda: time.monotonic() - stopped > STOPPED_SECONDS, STOPPED_SECONDS)
        for zombie in zombies.values():
            zombie.go_on()
        codes = {victim: zombie.process.wait(120) for victim, zombie in zombies.items()}
        for victim, zombie in zombies.items():
            assert codes[victim] == 3, (victim, codes, zombie.said())
        for victim, load in loads.items():
            load.end()
            assert all(shard.restarts == 0 for shard in successors[victim].shards), successors[victim].shards
    print("took", took)
    for load in loads.values():
        load.require_clean(500)
