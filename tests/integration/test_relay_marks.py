"""Marks, purges and resets by themselves: whose they are, and what keeps a leader that was superseded from them."""

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import replace

import psycopg
import pytest

from tests.relay.relaying import Place, taken_over
from thresher.devstack.stack import Stack
from thresher.outbox import Message
from thresher.relay.control import incarnation
from thresher.relay.fate import SENT
from thresher.relay.lot import Few
from thresher.relay.marker import Marker, reset
from thresher.relay.names import buckets_of
from thresher.relay.problem import DatabaseLost, DatabaseRefused, Superseded
from thresher.relay.progress import Origin, Progress
from thresher.relay.settings import Delivery, Mandate
from thresher.relay.settle import Settlement

ROWS = 20
MINE, OTHERS = uuid.UUID(int=1), uuid.UUID(int=2)


@pytest.fixture
def place(stack: Stack, dsn: str, topic_prefix: str) -> Place:
    place = Place(stack, dsn, topic_prefix)
    place.stash(*(Message(topic=place.topic, key=f"k{number % 4}", value=b"v") for number in range(ROWS)))
    return place


@pytest.fixture
def mandate(place: Place) -> Mandate:
    return taken_over(place.settings(delivery=Delivery.AT_LEAST_ONCE))


def superseded(mandate: Mandate) -> Mandate:
    return replace(mandate, term=str(uuid.uuid4()))


@contextlib.contextmanager
def marker(place: Place, mandate: Mandate, leader: uuid.UUID) -> Iterator[Marker]:
    with psycopg.connect(place.dsn) as connection:
        since = incarnation(connection).since
    with contextlib.closing(
        Marker(mandate, "tests", buckets_of(0, 1), since, leader=lambda _: leader, hot=lambda: ())
    ) as marking:
        yield marking


def marked(place: Place) -> dict[uuid.UUID | None, int]:
    return dict(place.sql("SELECT leader_id, count(*)::int FROM outbox GROUP BY 1"))


def read(marking: Marker, in_flight: tuple[int, ...] = ()) -> list[int]:
    # So many that a bucket may give all that it has.
    found = marking.read(10_000, 1_000_000, in_flight, (), 0)
    if found is None:
        return []
    return list(found.ids) if isinstance(found, Few) else found.column("id").to_pylist()


def test_a_leader_that_was_superseded_marks_purges_and_resets_nothing(place: Place, mandate: Mandate) -> None:
    late = superseded(mandate)
    with marker(place, late, OTHERS) as marking, pytest.raises(Superseded):
        read(marking)
    assert marked(place) == {None: ROWS}
    with marker(place, mandate, MINE) as marking:
        ids = read(marking)
    assert len(ids) == ROWS
    with psycopg.connect(place.dsn, autocommit=True) as connection:
        assert reset(connection, late, MINE, ids) == 0
        assert reset(connection, mandate, OTHERS, ids) == 0
        settlement = Settlement(connection, place.table, place.shape, place.settings().settling)
        origin = Origin(outbox_id="", system_id="", incarnation="", term="", shard=0)
        times = [
            row[0]
            for row in place.sql("SELECT (extract(epoch FROM create_time) * 1000000)::bigint FROM outbox ORDER BY id")
        ]
        sent = Progress(origin=origin, number=1, ids=sorted(ids), create_times=times, fates=[SENT] * ROWS)
        assert settlement.execute(sent, mark=OTHERS) == 0
        settlement.require_gone(sent, mark=OTHERS)
        with pytest.raises(DatabaseRefused):
            settlement.require_gone(sent, mark=MINE)
        assert marked(place) == {MINE: ROWS}
        assert reset(connection, mandate, MINE, ids[:5]) == 5
        assert marked(place) == {MINE: ROWS - 5, None: 5}
        assert settlement.execute(sent, mark=MINE) == ROWS - 5


def test_rows_that_another_attempt_has_marked_meanwhile_are_not_taken_a_second_time(
    place: Place, mandate: Mandate
) -> None:
    # The other is an attempt that was replaced, and does not know it yet: it has the same term.
    with marker(place, mandate, MINE) as mine, marker(place, mandate, OTHERS) as others:
        ids = read(mine)
        assert read(mine, tuple(ids)) == []
        assert len(read(others)) == ROWS
        with pytest.raises(DatabaseLost, match="marked by another"):
            read(mine, tuple(ids))
