"""The life of a harvest: competing, leading, losing leadership, and the events for its listeners."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer

from tests.faults.patient import PRODUCER
from tests.processes import eventually
from tests.relay.relaying import POLICY, RELAYED_SECONDS, Place, Relaying
from thresher.config.problem import ConfigurationInvalid
from thresher.core.errors import Superseded
from thresher.db.problem import DatabaseRefused
from thresher.delivery.names import sessions
from thresher.devstack.stack import Stack
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.event import Event, LeaderAcquired, LeaderFenced, LeaderRevoked, MeterRead
from thresher.harvest.harvest import Harvest, State
from thresher.harvest.problem import HarvestMisused
from thresher.outbox import Message
from thresher.spark.session.session import Session
from thresher.testing.leadership import Ballot, StagedLeadership

NONE = ElectionSettings(kind=ElectionKind.NONE)
# Long enough that no slow process loses its lease. A process that stops releases it.
LEASE = ElectionSettings(lease_seconds=20.0)


@pytest.fixture
def place(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


def made(place: Place, **options: Any) -> Harvest:
    settings = place.settings(**{"shards": 1, "producer_factory": PRODUCER, **options.pop("settings", {})})
    return Harvest(settings, **{"policy": POLICY, "metrics_seconds": 0.2, "election": LEASE, **options})


class Listener:
    """Keeps all events."""

    def __init__(self, harvest: Harvest) -> None:
        self.events: list[Event] = []
        harvest.on_event(self.events.append)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def until(self, condition: Callable[[], object], seconds: float = RELAYED_SECONDS) -> None:
        eventually(condition, seconds, lambda: f"{self.events}")


def stash(place: Place, first: int, count: int) -> None:
    place.stash(*(Message(topic=place.topic, key=f"{n % 7}", value=f"{n}") for n in range(first, first + count)))


def values(place: Place, count: int) -> list[int]:
    return sorted(int(message.value() or b"") for message in place.read(count))


def test_a_harvest_leads_relays_notifies_listeners_and_stops(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    harvest = made(place)

    # The first listener fails; the others are called nevertheless.
    @harvest.on_event
    def failing(_event: Event) -> None:
        raise RuntimeError("the listener's own trouble")

    listener = Listener(harvest)
    assert (harvest.state, harvest.is_leader, harvest.leader_id) == (State.CREATED, False, None)
    with pytest.raises(HarvestMisused):
        harvest.wait()
    stash(place, 0, 100)
    with harvest:
        assert str(harvest.state) == "Running"
        with pytest.raises(HarvestMisused):
            harvest.start()
        assert values(place, 100) == list(range(100))
        # The term in the control row is the leader id.
        assert place.sql("SELECT term FROM thresher_relay")[0][0] == harvest.leader_id
        assert harvest.is_leader
        listener.until(lambda: any(event.relayed == 100 for event in listener.of(MeterRead)))
        assert harvest.wait(0) is State.RUNNING
        eventually(lambda: harvest.in_flight_records == 0 and harvest.in_flight_keys == (), RELAYED_SECONDS)
    assert harvest.state is State.STOPPED
    assert harvest.wait() is State.STOPPED
    assert harvest.relayed == 100
    (acquired,) = listener.of(LeaderAcquired)
    assert listener.events[0] == acquired
    listener.until(lambda: listener.events[-1] == LeaderRevoked())
    assert sum(event.rate * event.seconds for event in listener.of(MeterRead)) == pytest.approx(100)
    assert "the listener's own trouble" in caplog.text
    harvest.stop()
    with pytest.raises(HarvestMisused):
        harvest.start()


def test_a_harvest_stopped_before_its_start_does_not_run() -> None:
    from thresher.db import TableName
    from thresher.relay.settings import Settings

    harvest = Harvest(Settings(name="n", dsn="", outbox=TableName(table="outbox"), kafka={}))
    harvest.stop()
    assert harvest.state is State.STOPPED
    assert harvest.wait() is State.STOPPED
    with pytest.raises(HarvestMisused):
        harvest.start()


def touching(place: Place) -> list[Any]:
    """Return the relay's sessions except probes, and the tables that it has made."""
    open_ = place.sql(
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s "
        "AND application_name NOT LIKE %s",
        "thresher%",
        "thresher-probe/%",
    )
    return [*open_, *place.sql("SELECT 1 WHERE to_regclass('thresher_relay') IS NOT NULL")]


def uses(place: Place) -> list[Any]:
    """Return how often the outbox was read and written. A session reports its numbers when it ends."""
    return place.sql(
        "SELECT n_tup_ins, n_tup_upd, n_tup_del, seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'outbox'"
    )


def test_a_standby_leaves_the_database_alone_before_and_after_leading(place: Place) -> None:
    election = StagedLeadership()
    harvest = made(place, election=election)
    listener = Listener(harvest)
    stash(place, 0, 10)
    eventually(lambda: uses(place)[0][0] == 10, RELAYED_SECONDS)
    before = uses(place)
    with harvest:
        time.sleep(0.5)
        assert touching(place) == []
        assert uses(place) == before
        election.grant()
        assert values(place, 10) == list(range(10))
        first = harvest.leader_id
        # Wait for settling too: a row that was sent and is not settled is still pending.
        eventually(lambda: harvest.relayed == 10 and place.pending() == 0, RELAYED_SECONDS)

        election.fence("the line was cut")
        assert not harvest.is_leader
        listener.until(lambda: listener.of(LeaderFenced) == [LeaderFenced(reason="the line was cut")])
        name = place.settings().name
        # The relay left no session behind.
        eventually(
            lambda: (
                not place.sql("SELECT 1 FROM pg_stat_activity WHERE application_name LIKE %s", f"{sessions(name)}%")
            ),
            RELAYED_SECONDS,
        )
        stash(place, 10, 10)
        time.sleep(0.5)
        assert place.pending() == 10

        election.grant()
        assert values(place, 20) == list(range(20))
        assert harvest.leader_id != first
        eventually(lambda: harvest.relayed == 20, RELAYED_SECONDS)
        election.revoke()
        listener.until(lambda: listener.of(LeaderRevoked))
    assert len(listener.of(LeaderAcquired)) == 2


def test_a_superseded_but_elected_harvest_competes_again(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    harvest = made(place, election=StagedLeadership(Ballot()))
    listener = Listener(harvest)
    stash(place, 0, 10)
    with harvest:
        values(place, 10)
        # A relay without an election.
        with place.relaying(shards=1) as other:
            # The harvest supersedes this relay in turn; a slow relay is superseded before it begins.
            assert isinstance(other.ended(), Superseded)
        stash(place, 10, 10)
        assert values(place, 20) == list(range(20))
    assert len(listener.of(LeaderAcquired)) == 2
    assert "use the same election" in caplog.text


def test_without_an_election_a_newer_harvest_supersedes_the_older(place: Place) -> None:
    harvest = made(place, election=NONE)
    harvest.start()
    eventually(lambda: harvest.term, RELAYED_SECONDS)
    with Relaying(place.settings(shards=1), policy=POLICY), pytest.raises(Superseded):
        harvest.wait(60)
    assert harvest.state is State.STOPPED


def test_an_error_that_needs_a_person_ends_the_harvest(place: Place) -> None:
    from thresher.db import TableName

    harvest = made(place, election=NONE, settings={"outbox": TableName(table="nowhere")})
    with pytest.raises(DatabaseRefused), harvest:
        harvest.wait(60)


def test_the_standby_leads_when_the_leader_stops(place: Place) -> None:
    one, other = made(place), made(place)
    listener = Listener(other)
    with one:
        eventually(lambda: one.is_leader, RELAYED_SECONDS)
        with other:
            stash(place, 0, 100)
            values(place, 100)
            assert not other.is_leader
            stopping = threading.Thread(target=one.stop)
            stopping.start()
            stash(place, 100, 100)
            assert values(place, 200) == list(range(200))
            stopping.join(60)
            listener.until(lambda: other.is_leader)
    assert one.relayed + other.relayed == 200


def test_clients_and_logger_can_be_the_callers_own(place: Place) -> None:
    logger, told = logging.getLogger("callers.own"), []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())

    logger.addHandler(Keep())
    logger.setLevel(logging.INFO)
    consumers: list[dict[str, Any]] = []

    def consumer(properties: dict[str, Any]) -> Consumer:
        consumers.append(properties)
        return Consumer(properties)

    election = ElectionSettings(kind=ElectionKind.NELI, consumer_factory=consumer)
    settings = {"producer_factory": "tests.relay.factories:marked_producer"}
    stash(place, 0, 10)
    with made(place, election=election, logger=logger, settings=settings):
        # The caller's producer adds a header.
        assert all(("made-by", b"the caller") in (message.headers() or []) for message in place.read(10))
    assert {each["group.id"] for each in consumers} == {place.settings().name}
    assert any("taken over" in text for text in told)
    assert logging.getLogger("thresher").propagate


def test_a_harvest_with_an_invalid_configuration_does_not_start(place: Place) -> None:
    harvest = made(place, settings={"name": "no name", "shards": 0, "producer": {"acks": 1}, "producer_factory": None})
    with pytest.raises(ConfigurationInvalid, match=r"name: .*\n.*shards: .*\n.*producer.acks: ") as caught:
        harvest.start()
    assert caught.value.exit_code == 2
    assert harvest.state is State.CREATED
    with pytest.raises(HarvestMisused, match="SparkOptions"):
        made(place, spark="local[2]")
