"""One leadership as several threads see it, with the test's own clock."""

import threading

import pytest

from thresher.election.candidacy import Candidacy
from thresher.election.leadership import Acquired, Fenced, Revoked
from thresher.election.problem import ElectionRefused
from thresher.election.tenure import LATE, Confirmed, Granted


class Hand:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def leading(clock: Hand) -> Candidacy:
    candidacy = Candidacy(clock)
    candidacy.handle(Granted())
    candidacy.handle(Confirmed(until=5.0))
    assert isinstance(candidacy.wait(0), Acquired)
    return candidacy


def test_a_leader_past_its_deadline_has_no_id() -> None:
    clock = Hand()
    candidacy = leading(clock)
    clock.now = 5.0
    assert candidacy.leader_id is None
    # A late confirmation begins another leadership.
    before = candidacy.handle(Confirmed(until=9.0))
    assert isinstance(before[0], Acquired)
    assert candidacy.wait(0) == Fenced(reason=LATE)


def test_a_clock_set_back_restores_no_leadership() -> None:
    clock = Hand()
    candidacy = leading(clock)
    clock.now = 5.0
    assert candidacy.leader_id is None
    clock.now = 1.0
    assert candidacy.leader_id is None


def test_a_wait_ends_with_a_change_by_another_thread() -> None:
    candidacy = Candidacy()

    def lead() -> None:
        candidacy.handle(Granted())
        candidacy.handle(Confirmed(until=candidacy.now() + 600))

    threading.Timer(0.05, lead).start()
    assert isinstance(candidacy.wait(60), Acquired)


def test_a_wait_ends_when_the_deadline_passes() -> None:
    candidacy = Candidacy()
    candidacy.handle(Granted())
    candidacy.handle(Confirmed(until=candidacy.now() + 0.5))
    assert isinstance(candidacy.wait(0), Acquired)
    assert candidacy.wait(60) == Fenced(reason=LATE)


def test_an_error_is_raised_after_earlier_changes_and_repeatedly() -> None:
    candidacy = leading(Hand())
    candidacy.fail(ElectionRefused("no"))
    assert candidacy.wait(0) == Revoked()
    for _ in range(2):
        with pytest.raises(ElectionRefused):
            candidacy.wait(0)


def test_a_closed_candidacy_reports_its_end_once() -> None:
    candidacy = leading(Hand())
    candidacy.close()
    assert candidacy.leader_id is None
    assert candidacy.wait(0) == Revoked()
    assert candidacy.wait(600) is None
    assert candidacy.handle(Granted()) == []
