"""A relay that cannot reach its database or broker reports it on every page, and lets another process lead."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.faults.patient import PRODUCER
from tests.faults.proxied import PROXIED
from tests.faults.tcp_line import line_to, messages_of, through
from tests.processes import eventually
from tests.relay.relaying import POLICY, RELAYED_SECONDS, Place
from tests.service.scraping import Scraper, shown
from thresher.devstack import ports
from thresher.devstack.stack import Stack
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.harvest.harvest import Harvest
from thresher.kafka import admin
from thresher.outbox import Message
from thresher.service import service
from thresher.service.health import Role
from thresher.service.servers import server_log
from thresher.service.servers.probing import Probing
from thresher.spark.session.session import Session
from thresher.testing.leadership import Ballot, StagedLeadership
from thresher.testing.proxy import KafkaProxy

# Measured: 8 s until a process steps down, and 2 s until another one relays.
LED_SECONDS = 90.0
STEP_DOWN_SECONDS = 2.0


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe servers every second, so that the tests need not wait as long as production does."""
    monkeypatch.setattr(service, "Probing", partial(Probing, reached_seconds=1.0, lost_seconds=0.5))
    monkeypatch.setattr(admin, "_REQUEST_SECONDS", 2.0)


@pytest.fixture
def place(stack: Stack, spark: Session, dsn: str, topic_prefix: str) -> Place:
    return Place(stack, dsn, topic_prefix)


@pytest.fixture
def proxy(stack: Stack) -> Iterator[KafkaProxy]:
    """Yield a proxy to the broker that a test can hold."""
    (listener,) = stack.kafka.options.listeners
    with KafkaProxy(stack.kafka.bootstrap_of(PROXIED), port=listener.advertised_ports[0]) as listening:
        yield listening


def made(place: Place, election: Any, **settings: Any) -> Harvest:
    given = place.settings(**{"shards": 1, "producer_factory": PRODUCER, **settings})
    return Harvest(given, election=election, policy=POLICY, step_down_seconds=STEP_DOWN_SECONDS)


def stash(place: Place, first: int, count: int) -> None:
    place.stash(*(Message(topic=place.topic, key=f"{n % 7}", value=f"{n}") for n in range(first, first + count)))


def values(place: Place, count: int) -> list[int]:
    return sorted(int(message.value() or b"") for message in place.read(count, seconds=LED_SECONDS))


def answered(page: Scraper, code: int, reason: str) -> dict[str, Any]:
    """Wait until `/readyz` gives this code and reason, and return that answer."""
    answers: list[tuple[int, dict[str, Any]]] = []

    def given() -> bool:
        answers.append(page.probe("/readyz"))
        return (answers[-1][0], answers[-1][1]["reason"]) == (code, reason)

    eventually(given, LED_SECONDS, lambda: f"{answers[-1:]}")
    return answers[-1][1]


def one_story(page: Scraper, lost: str, found: str) -> None:
    """Check that all pages agree that one server was lost and the other was not. For moments they may differ."""

    def agreed() -> bool:
        samples, (code, ready), (_, status) = page.samples(), page.probe("/readyz"), page.probe("/status")
        gauges = [samples[f"thresher_{name}", ()] for name in ("ready", f"{lost}_up", f"{found}_up")]
        told = (code, ready["reason"], status["ready"], status["reason"], status["servers"][lost]["up"])
        return (gauges, told) == ([0, 0, 1], (503, f"{lost}-lost", False, f"{lost}-lost", False))

    eventually(agreed, LED_SECONDS, lambda: f"{page.probe('/status')} {page.probe('/readyz')}")
    assert page.probe("/status")[1]["servers"][lost]["trouble"]
    eventually(lambda: page.total("thresher_errors_total", kind=f"{lost}_lost") > 0, LED_SECONDS)
    assert page.probe("/healthz")[0] == 200


def test_a_relay_with_a_wrong_data_source_is_not_ready(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_log, "REPEAT_SECONDS", 0.5)
    wrong = f"host=127.0.0.1 port={ports.free_port()} user=u dbname=d"
    harvest = made(place, ElectionSettings(), dsn=wrong)
    with shown(harvest) as page, harvest:
        assert answered(page, 503, "database-lost")["role"] == "standby"
        eventually(lambda: "refused" in answered(page, 503, "database-lost")["trouble"], LED_SECONDS)
        one_story(page, lost="database", found="broker")
        assert "refused" in page.probe("/status")[1]["database_trouble"]
        # The harvest's election uses the same database.
        assert not page.probe("/status")[1]["servers"]["election"]["up"]
        eventually(lambda: "attempts failed" in caplog.text, RELAYED_SECONDS)
    assert f"the relay {harvest.workload.name} does not reach its database" in caplog.text


def test_a_standby_with_a_wrong_broker_is_not_ready(place: Place) -> None:
    wrong = {"bootstrap.servers": f"127.0.0.1:{ports.free_port()}"}
    harvest = made(place, StagedLeadership(), kafka=wrong)
    with shown(harvest) as page, harvest:
        answered(page, 503, "broker-lost")
        one_story(page, lost="broker", found="database")


def test_a_standby_becomes_ready_without_a_query(place: Place) -> None:
    with line_to(place.dsn) as line:
        harvest = made(place, StagedLeadership(), dsn=through(line, place.dsn))
        with shown(harvest) as page, harvest:
            assert answered(page, 200, "standby") == {"status": "ok", "reason": "standby", "role": "standby"}
            eventually(lambda: len(line.sent) >= 3, RELAYED_SECONDS)
            # Only these probes have ended, with a Terminate message.
            probes = [messages_of(bytes(sent)) for sent in line.sent[:2]]
            assert page.total("thresher_database_up") == page.total("thresher_broker_up") == 1
    # Password and Terminate messages only.
    assert all(set(messages) <= {"p", "X"} for messages in probes), probes


def test_a_leader_with_a_hanging_database_is_not_ready(place: Place) -> None:
    with line_to(place.dsn) as line:
        # There is no other competitor.
        harvest = made(place, StagedLeadership(Ballot()), dsn=through(line, place.dsn))
        stash(place, 0, 20)
        with shown(harvest) as page, harvest:
            assert values(place, 20) == list(range(20))
            answered(page, 200, "relaying")
            line.hold()
            answered(page, 503, "database-lost")
            one_story(page, lost="database", found="broker")
            eventually(lambda: page.total("thresher_step_downs_total") >= 1, LED_SECONDS)
            stash(place, 20, 20)
            line.release()
            assert values(place, 40) == list(range(40))
            answered(page, 200, "relaying")
            assert page.total("thresher_takeovers_total") >= 2


def test_a_lease_holder_with_a_hanging_database_is_not_ready(place: Place) -> None:
    with line_to(place.dsn) as line:
        harvest = made(place, ElectionSettings(), dsn=through(line, place.dsn))
        with shown(harvest) as page, harvest:
            answered(page, 200, "relaying")
            # The lease expires, and the process is a standby.
            line.hold()
            one_story(page, lost="database", found="broker")
            line.release()
            answered(page, 200, "relaying")


@pytest.mark.parametrize(("lost", "election"), [("broker", ElectionKind.LEASE), ("database", ElectionKind.NELI)])
def test_a_leader_that_alone_lost_a_server_steps_down(
    place: Place, proxy: KafkaProxy, lost: str, election: ElectionKind
) -> None:
    # Long enough that a slow process keeps its lease.
    how = ElectionSettings(kind=election, lease_seconds=6.0)
    with line_to(place.dsn) as line:
        own: dict[str, Any] = {"dsn": through(line, place.dsn), "kafka": {"bootstrap.servers": proxy.address}}
        del own["dsn" if lost == "broker" else "kafka"]
        cut_off, other = made(place, how, **own), made(place, how)
        stash(place, 0, 20)
        with shown(cut_off) as page, shown(other) as other_page, cut_off:
            assert values(place, 20) == list(range(20))
            with other:
                answered(other_page, 200, "standby")
                eventually(lambda: place.pending() == 0, RELAYED_SECONDS)
                (proxy.pause if lost == "broker" else line.hold)()
                answered(page, 503, f"{lost}-lost")
                if lost == "broker":
                    # No row is pending, and the leader knows it: another leader could do nothing more.
                    time.sleep(2 * STEP_DOWN_SECONDS)
                    assert (cut_off.role, page.total("thresher_step_downs_total")) == (Role.LEADING, 0)
                stash(place, 20, 20)
                assert values(place, 40) == list(range(40))
                assert (other.is_leader, page.total("thresher_step_downs_total") >= 1) == (True, True)
                (proxy.resume if lost == "broker" else line.release)()
                answered(page, 200, "standby")
    assert other.relayed == 20
