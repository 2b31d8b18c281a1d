"""Events are announced after the change that they report; records are in flight until they are purged."""

import uuid
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.faults.patient import PRODUCER
from tests.processes import eventually
from tests.relay.relaying import POLICY, RELAYED_SECONDS, Place, Relaying
from thresher.core.errors import Superseded
from thresher.devstack.stack import Stack
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.event import Event, LeaderFenced, LeaderRefreshed, LeaderRevoked
from thresher.harvest.harvest import Harvest
from thresher.outbox import Message
from thresher.relay.settings import Delivery
from thresher.service.pages import StatusPages
from thresher.spark.session.session import Session
from thresher.testing.leadership import StagedLeadership

NONE = ElectionSettings(kind=ElectionKind.NONE)


@pytest.fixture
def place(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


def made(place: Place, *, election: Any = NONE, **settings: Any) -> Harvest:
    given = place.settings(**{"shards": 1, "producer_factory": PRODUCER, **settings})
    return Harvest(given, policy=POLICY, election=election)


def stash(place: Place, count: int, topic: str | None = None) -> None:
    place.stash(*(Message(topic=topic or place.topic, key=f"{n % 7}", value=f"{n}") for n in range(count)))


def heard(harvest: Harvest, kind: type[Event]) -> list[Any]:
    """Return a list to which the harvest adds its events of a kind."""
    events: list[Any] = []

    @harvest.on_event
    def keep(event: Event) -> None:
        if isinstance(event, kind):
            events.append(event)

    return events


def test_a_leadership_is_revoked_after_its_last_row(place: Place) -> None:
    election = StagedLeadership()
    slow = {"transforms": ("tests.relay.transforms:unhurried",), "limits": {"batch_rows": 50}}
    harvest = made(place, election=election, **slow)
    left: list[int] = []

    @harvest.on_event
    def look(event: Event) -> None:
        if isinstance(event, LeaderRevoked):
            left.append(place.pending())

    stash(place, 3_000)
    with harvest:
        election.grant()
        eventually(lambda: harvest.relayed >= 100, RELAYED_SECONDS)
        election.revoke()
        eventually(lambda: left, RELAYED_SECONDS)
        # A batch that was open at the revocation was finished before it, or is sent by another leader.
        assert left == [place.pending()]
        assert 0 < left[0] < 3_000
    assert left == [place.pending()]


def test_a_superseded_leader_is_fenced(place: Place) -> None:
    harvest = made(place)
    ends = heard(harvest, LeaderFenced | LeaderRevoked)  # type: ignore[arg-type]
    harvest.start()
    eventually(lambda: harvest.term, RELAYED_SECONDS)
    with Relaying(place.settings(shards=1), policy=POLICY), pytest.raises(Superseded):
        harvest.wait(60)
    (fenced,) = ends
    assert isinstance(fenced, LeaderFenced)
    assert "newer relay" in fenced.reason


def half(leader_id: uuid.UUID | str | None) -> bytes:
    return uuid.UUID(str(leader_id)).bytes[:8]


def test_rows_marked_again_refresh_the_leader_id(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    harvest = made(place, delivery=Delivery.AT_LEAST_ONCE, limits={"grace_seconds": 600.0})
    refreshed = heard(harvest, LeaderRefreshed)
    with harvest, closing(StatusPages(harvest)) as board:

        def more(than: int) -> bool:
            return len(refreshed) > than

        # The topics are missing: when the row of a further one is held, what was marked is marked again.
        for number in range(3):
            before = len(refreshed)
            stash(place, 1, f"{place.prefix}missing-{number}")
            eventually(partial(more, before), RELAYED_SECONDS)

        def told() -> bool:
            ((mark,),) = place.sql("SELECT leader_id FROM outbox ORDER BY id DESC LIMIT 1")
            return mark in [event.leader_id for event in refreshed]

        def shown() -> bool:
            return board.picture()["shards"][0]["leader_id"] in [str(event.leader_id) for event in refreshed[-2:]]

        for condition in (told, shown):
            eventually(condition, RELAYED_SECONDS, lambda: f"{refreshed} {board.picture()}")
        assert {half(event.leader_id) for event in refreshed} == {half(harvest.leader_id)}
        assert {event.shard for event in refreshed} == {0}
        assert len({event.leader_id for event in refreshed}) == len(refreshed)
        term = board.picture()["term"]
        assert term == str(harvest.leader_id)
    assert f"acquired, as {term}" in caplog.text
    assert "shard 0 marks rows as" in caplog.text


def still(condition: Callable[[], object], harvest: Harvest) -> None:
    eventually(condition, RELAYED_SECONDS, lambda: f"{harvest.in_flight_records} {harvest.in_flight_keys}")


@pytest.mark.parametrize("delivery", Delivery)
def test_records_are_in_flight_until_their_rows_are_purged(place: Place, delivery: Delivery) -> None:
    # A first take-over would wait for whoever has locked rows: it could be a dispatcher.
    with made(place, delivery=delivery) as first:
        eventually(lambda: first.term, RELAYED_SECONDS)
    place.stash(*(Message(topic=place.topic, key=key, value=b"v") for key in (b"\xff", b"b")))
    harvest = made(place, delivery=delivery)
    with psycopg.connect(place.dsn) as holder:
        # A lock allows reading and marking the rows, and blocks deleting them.
        holder.execute("SELECT 1 FROM outbox FOR KEY SHARE")
        with harvest:
            place.read(2)
            still(lambda: harvest.in_flight_records == 2 and sorted(harvest.in_flight_keys) == [b"b", b"\xff"], harvest)
            holder.commit()
            still(lambda: harvest.in_flight_records == 0 and harvest.in_flight_keys == (), harvest)
            assert place.pending() == 0
