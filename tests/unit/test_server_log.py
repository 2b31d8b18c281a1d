"""Log lines about unreachable servers."""

import logging

import pytest

from thresher.core.errors import Trouble
from thresher.service.servers.reach import Reach
from thresher.service.servers.server_log import ServerLog


class Told:
    """A server log with a clock that the test sets."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now = 0.0
        self.reach = Reach(["database"], clock=lambda: self.now)
        self._log, self._caplog = ServerLog(self.reach, label="relay", name="orders"), caplog
        caplog.set_level(logging.INFO)

    def at(self, now: float, *, standby: bool = False) -> list[str]:
        """Return the log lines of this moment."""
        self.now = now
        self._caplog.clear()
        self._log.log_due(now, standby=standby)
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def test_a_lost_server_is_logged_at_once_and_every_minute(told: Told) -> None:
    assert told.at(1) == []
    told.reach.failed("database", Trouble("it hung up"))
    assert told.at(2) == ["the relay orders does not reach its database: it hung up"]
    for _ in range(3):
        told.reach.failed("database", Trouble("it refused"))
    assert told.at(61) == []
    assert told.at(62) == ["the relay orders has not reached its database for 62 s, 4 attempts failed: it refused"]
    assert told.at(121) == []
    assert len(told.at(122)) == 1
    told.reach.succeeded("database")
    assert told.at(123) == ["the relay orders reaches its database again"]
    assert told.at(124) == []


def test_a_flapping_server_is_logged_once_a_minute(told: Told) -> None:
    told.reach.failed("database", Trouble("no"))
    assert len(told.at(1)) == 1
    told.reach.succeeded("database")
    assert len(told.at(2)) == 1
    told.reach.failed("database", Trouble("no"))
    assert told.at(3) == []
    assert told.at(61) == ["the relay orders does not reach its database: no"]


def test_a_hanging_attempt_is_logged_after_a_minute(told: Told) -> None:
    told.reach.succeeded("database")
    assert told.at(60) == []
    assert told.at(61) == ["the relay orders does not reach its database: it has not answered for 61 s"]


def test_a_standby_logs_that_its_election_is_unreachable(told: Told) -> None:
    told.reach.election = lambda: "no lease"
    told.reach.succeeded("database")
    assert told.at(59, standby=True) == []
    told.reach.succeeded("database")
    assert told.at(61, standby=True) == ["the relay orders does not reach its election: no lease"]
