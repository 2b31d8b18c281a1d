"""The pages of a standby, and of a process whose database does not answer."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.relay.scraping import Process, shown
from thresher.db import TableName
from thresher.db.problem import DatabaseRefused
from thresher.delivery.leader.server_probes import SERVERS
from thresher.relay.report import status
from thresher.relay.settings import Settings
from thresher.service.health import Role
from thresher.service.servers.reach import Reach


@pytest.fixture
def calls() -> Iterator[socket.socket]:
    """Yield a socket that accepts connections and never answers, as a silent database."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.0)
        yield listening


def process(calls: socket.socket, **changes: Any) -> Process:
    dsn = f"host=127.0.0.1 port={calls.getsockname()[1]} user=u dbname=d connect_timeout=120"
    settings = Settings(name="orders", dsn=dsn, outbox=TableName(table="outbox"), kafka={})
    return Process(settings=settings, **changes)


def test_a_standby_is_ready_and_its_database_is_not_called(calls: socket.socket) -> None:
    with shown(process(calls)) as page:
        assert page.probe("/readyz") == (200, {"status": "ok", "reason": "standby", "role": "standby"})
        assert page.probe("/healthz")[0] == 200
        samples = page.samples()
        assert (samples["thresher_leader", ()], samples["thresher_ready", ()]) == (0, 1)
        picture = page.probe("/status")[1]
        assert (picture["state"], picture["pending"], picture["database_trouble"]) == ("standby", None, None)
    with pytest.raises(BlockingIOError):
        calls.accept()


def test_a_silent_database_delays_no_page(calls: socket.socket) -> None:
    waiting = process(calls, patience_seconds=0.3, role=Role.TAKING_OVER, waiting_for="the database")
    with shown(waiting) as page:
        # Measured: 0.3 s. Prometheus waits for 15 s, and libpq for 120 s.
        samples = page.samples()
        code, answer = page.probe("/readyz")
        assert ("thresher_pending_exact", ()) not in samples
        assert (code, answer["waiting_for"]) == (503, "the database")
        assert "has not answered" in page.probe("/status")[1]["database_trouble"]
        calls.settimeout(60.0)
        calls.accept()[0].close()


def test_a_page_shows_the_state_after_the_databases_answer(
    calls: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    leading = process(calls, role=Role.LEADING)

    def slow(_: object) -> tuple[None, None]:
        # The process becomes a standby while the database answers.
        leading.role = Role.STANDBY
        leading.process_counts.count("takeovers")
        return None, None

    monkeypatch.setattr(status.BacklogReader, "look", slow)
    with shown(leading) as page:
        assert page.samples()["thresher_takeovers_total", ()] == 1
        leading.role = Role.LEADING
        assert page.probe("/status")[1]["role"] == "standby"


def test_a_lost_server_is_shown_on_every_page(calls: socket.socket) -> None:
    given = process(calls, reach=Reach(SERVERS))
    with shown(given) as page:
        assert page.probe("/readyz")[1]["reason"] == "database-lost"
        given.reach.all_succeeded()
        given.reach.failed("database", DatabaseRefused("the password is wrong"))
        code, answer = page.probe("/readyz")
        assert (code, answer["reason"], answer["trouble"]) == (503, "database-refused", "the password is wrong")
        samples, picture = page.samples(), page.probe("/status")[1]
        assert (samples["thresher_ready", ()], samples["thresher_database_up", ()]) == (0, 0)
        assert samples["thresher_broker_up", ()] == 1
        assert (picture["ready"], picture["reason"]) == (False, "database-refused")
        assert picture["database_trouble"] == picture["servers"]["database"]["trouble"] == "the password is wrong"
        assert (picture["servers"]["broker"]["up"], picture["servers"]["broker"]["trouble"]) == (True, None)
        given.reach.all_succeeded()
        assert page.probe("/readyz")[0] == 200
        given.reach.election = lambda: "no lease"
        assert page.probe("/readyz")[1]["servers"] == {"election": "no lease"}
