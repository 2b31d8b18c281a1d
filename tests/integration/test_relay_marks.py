"""Marks, purges and resets without a relay: each affects only its own marks, and a superseded leader is refused."""

import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from tests.processes import eventually
from tests.relay.reads import ids_of
from tests.relay.reads import read as read_from
from tests.relay.recorded import recorded
from tests.relay.relaying import Place, taken_over
from thresher.core.errors import Superseded
from thresher.db.postgres.sessions import connect_as_configured, incarnation
from thresher.db.postgres.settlement import PostgresSettlement
from thresher.db.problem import DatabaseLost, DatabaseRefused
from thresher.delivery.fate import SENT
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.names import buckets_of
from thresher.relay.protocol.progress import Progress
from thresher.relay.reading.marking import Marking
from thresher.relay.settings import Delivery, Settling, ShardAssignment
from thresher.relay.settle import Settlement
from thresher.relay.store import store_of

ROWS = 20
MINE, OTHERS = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.fixture
def place(stack: Stack, dsn: str, topic_prefix: str) -> Place:
    place = Place(stack, dsn, topic_prefix)
    place.stash(*(Message(topic=place.topic, key=f"k{number % 4}", value=b"v") for number in range(ROWS)))
    return place


@pytest.fixture
def assignment(place: Place) -> ShardAssignment:
    return taken_over(place.settings(delivery=Delivery.AT_LEAST_ONCE))


def superseded(assignment: ShardAssignment) -> ShardAssignment:
    return replace(assignment, term=str(uuid.uuid4()))


@contextlib.contextmanager
def marker(place: Place, assignment: ShardAssignment, leader: uuid.UUID) -> Iterator[Marking]:
    with psycopg.connect(place.dsn) as connection:
        since = incarnation(connection, assignment.settings.outbox).since
    with contextlib.closing(
        Marking(assignment, "tests", buckets_of(0, 1), since, leader=lambda _: leader, hot=lambda: ())
    ) as marking:
        yield marking


def marked(place: Place) -> dict[uuid.UUID | None, int]:
    return dict(place.sql("SELECT leader_id, count(*)::int FROM outbox GROUP BY 1"))


def read(marking: Marking, in_flight: tuple[int, ...] = ()) -> list[int]:
    # A limit that lets each bucket return all its rows.
    found = read_from(marking, 10_000, 1_000_000, dict.fromkeys(in_flight, 0))
    return [] if found is None else ids_of(found)


def all_sent(place: Place) -> Progress:
    """Return a progress record that names every row as sent."""
    return recorded(*((*row, SENT) for row in place.sql("SELECT id, create_time FROM outbox ORDER BY id")))


def test_a_superseded_leader_marks_purges_and_resets_nothing(place: Place, assignment: ShardAssignment) -> None:
    late = superseded(assignment)
    with marker(place, late, OTHERS) as marking, pytest.raises(Superseded):
        read(marking)
    assert marked(place) == {None: ROWS}
    with marker(place, assignment, MINE) as marking:
        ids = read(marking)
    assert len(ids) == ROWS
    with contextlib.closing(store_of(place.settings()).session("tests")) as session:
        name = assignment.settings.name
        marks = session.marks(name, assignment.term)
        assert session.marks(name, late.term).reset(ids, MINE) == 0
        assert marks.reset(ids, OTHERS) == 0
        settlement = Settlement(session.settlement)
        sent = all_sent(place)
        assert settlement.execute(sent, mark=OTHERS) == 0
        settlement.require_gone(sent, mark=OTHERS)
        with pytest.raises(DatabaseRefused):
            settlement.require_gone(sent, mark=MINE)
        assert marked(place) == {MINE: ROWS}
        assert marks.reset(ids[:5], MINE) == 5
        assert marked(place) == {MINE: ROWS - 5, None: 5}
        assert settlement.execute(sent, mark=MINE) == ROWS - 5


def test_rows_marked_by_another_attempt_are_not_marked_again(place: Place, assignment: ShardAssignment) -> None:
    # The other attempt was replaced and does not know it yet: it has the same term.
    with marker(place, assignment, MINE) as mine, marker(place, assignment, OTHERS) as others:
        ids = read(mine)
        assert read(mine, tuple(ids)) == []
        assert len(read(others)) == ROWS
        with pytest.raises(DatabaseLost, match="marked by another"):
            read(mine, tuple(ids))


@pytest.mark.parametrize("settling", Settling)
def test_recovery_settles_rows_that_an_older_attempt_is_marking(place: Place, settling: Settling) -> None:
    sent = all_sent(place)
    waits = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with (
        contextlib.closing(connect_as_configured(place.dsn, "tests")) as connection,
        ThreadPoolExecutor(1) as thread,
        psycopg.connect(place.dsn) as older,
    ):
        older.execute("UPDATE outbox SET leader_id = %s", [OTHERS])
        settlement = Settlement(PostgresSettlement(connection, place.table, place.shape, settling))
        found = thread.submit(settlement.execute, sent)
        eventually(lambda: place.sql(waits), 60)
        older.commit()
        assert found.result(60) == ROWS
        settlement.require_gone(sent, recovering=True)
    assert place.pending() == 0
