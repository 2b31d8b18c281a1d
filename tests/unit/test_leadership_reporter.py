"""Events of a leadership that begins, continues and ends."""

import uuid
from typing import Any

import pytest

from thresher.election.leadership import Acquired, Fenced, Refreshed, Revoked
from thresher.service.events.event import Event, LeaderAcquired, LeaderFenced, LeaderRefreshed, LeaderRevoked
from thresher.service.events.leadership_reporter import LeadershipReporter

ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)


class Listening:
    """An announcer that records its events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.announce = self.events.append


@pytest.fixture
def listening() -> Listening:
    return Listening()


@pytest.fixture
def news(listening: Any) -> LeadershipReporter:
    return LeadershipReporter("orders", listening)


def test_a_change_is_announced_when_it_has_happened(
    news: LeadershipReporter, listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    news.decided(Fenced(reason="late"))
    assert "lost: late" in caplog.text
    assert not listening.events
    news.followed(Fenced(reason="late"))
    assert listening.events == [LeaderFenced(reason="late")]


def test_each_change_has_its_event(news: LeadershipReporter, listening: Listening) -> None:
    for change in (Acquired(leader_id=ONE), Refreshed(leader_id=TWO), Revoked()):
        news.followed(change)
    assert listening.events == [LeaderAcquired(leader_id=ONE), LeaderRefreshed(leader_id=TWO), LeaderRevoked()]


def test_only_the_superseded_leadership_is_reported_as_fenced(news: LeadershipReporter, listening: Listening) -> None:
    news.superseded = "a newer one has taken over"
    news.followed(Refreshed(leader_id=ONE))
    news.followed(Revoked())
    assert listening.events[1:] == [LeaderFenced(reason="a newer one has taken over")]
    news.followed(Acquired(leader_id=TWO))
    news.followed(Revoked())
    assert listening.events[-1] == LeaderRevoked()


def test_a_standby_says_once_who_leads(news: LeadershipReporter, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for leader in (None, "process 7 on a", "process 7 on a", "process 8 on b"):
        news.standing_by(leader)
    news.decided(Acquired(leader_id=ONE))
    news.decided(Revoked())
    news.standing_by("process 8 on b")
    said = [record.getMessage() for record in caplog.records if "standing by" in record.getMessage()]
    one, two = (f"standing by for orders: process {leader} leads" for leader in ("7 on a", "8 on b"))
    assert said == [one, two, two]
