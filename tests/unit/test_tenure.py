"""The effect of each event on a leadership, and its invariants under any order of events."""

import itertools
import math
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from thresher.election.leadership import Acquired, Change, Fenced, Refreshed, Revoked
from thresher.election.tenure import LATE, Confirmed, Event, Granted, RefreshAsked, Tenure, Tick, Withdrawn, decide


class Story:
    """Sends events to a tenure, with consecutive leader ids."""

    def __init__(self) -> None:
        self.tenure = Tenure()
        self.changes: list[Change] = []
        self._ids = (UUID(int=number) for number in itertools.count(1))

    def handle(self, event: Event, now: float) -> list[Change]:
        self.tenure, changes = decide(self.tenure, event, now=now, draw=self._ids.__next__)
        self.changes += changes
        return changes


def leading(until: float = 5.0) -> Story:
    story = Story()
    story.handle(Granted(), 0.0)
    story.handle(Confirmed(until=until), 0.0)
    return story


def test_a_grant_counts_once_it_is_confirmed() -> None:
    story = Story()
    assert story.handle(Granted(), 0.0) == []
    assert story.tenure.leader_id is None
    assert story.handle(Confirmed(until=5.0), 0.1) == [Acquired(leader_id=UUID(int=1))]


def test_a_confirmation_without_a_grant_changes_nothing() -> None:
    assert Story().handle(Confirmed(until=5.0), 0.0) == []


def test_an_unconfirmed_leader_is_fenced_at_its_deadline() -> None:
    story = leading()
    assert story.handle(Tick(), 4.999) == []
    assert story.handle(Tick(), 5.0) == [Fenced(reason=LATE)]


def test_a_confirmation_moves_the_deadline_and_never_back() -> None:
    story = leading()
    assert story.handle(Confirmed(until=9.0), 1.0) == []
    assert story.handle(Confirmed(until=6.0), 1.1) == []
    assert story.handle(Tick(), 8.9) == []
    assert story.handle(Tick(), 9.0) == [Fenced(reason=LATE)]


def test_a_late_confirmation_begins_another_leadership() -> None:
    story = leading()
    assert story.handle(Confirmed(until=9.0), 5.5) == [Fenced(reason=LATE), Acquired(leader_id=UUID(int=2))]


def test_an_expired_confirmation_begins_no_leadership() -> None:
    story = leading()
    assert story.handle(Confirmed(until=6.0), 7.0) == [Fenced(reason=LATE)]


def test_a_withdrawn_grant_cannot_be_confirmed() -> None:
    story = leading()
    assert story.handle(Withdrawn(), 1.0) == [Revoked()]
    assert story.handle(Confirmed(until=9.0), 1.0) == []


def test_a_lost_leadership_is_fenced_and_standbys_hear_nothing() -> None:
    story = leading()
    assert story.handle(Withdrawn(reason="taken"), 1.0) == [Fenced(reason="taken")]
    assert story.handle(Withdrawn(reason="taken"), 1.0) == []


def test_a_refresh_changes_the_id_and_not_the_deadline() -> None:
    story = leading()
    assert story.handle(RefreshAsked(), 1.0) == [Refreshed(leader_id=UUID(int=2))]
    assert story.handle(Tick(), 5.0) == [Fenced(reason=LATE)]
    assert story.handle(RefreshAsked(), 5.1) == []


EVENTS = st.one_of(
    st.builds(Granted),
    st.floats(-1, 4).map(lambda ahead: Confirmed(until=ahead)),
    st.sampled_from([Withdrawn(), Withdrawn(reason="taken")]),
    st.builds(RefreshAsked),
    st.builds(Tick),
)


@given(st.lists(st.tuples(st.floats(0, 3), EVENTS), max_size=40))
def test_every_story_is_made_of_whole_leaderships_with_fresh_ids(steps: list[tuple[float, Event]]) -> None:
    story, now, told_until = Story(), 0.0, -math.inf
    for elapsed, drawn in steps:
        now += elapsed
        # The drawn number is the distance from now.
        event = Confirmed(until=now + drawn.until) if isinstance(drawn, Confirmed) else drawn
        if isinstance(event, Confirmed):
            told_until = max(told_until, event.until)
        story.handle(event, now)
        if story.tenure.leader_id is not None:
            assert story.tenure.granted
            assert now < story.tenure.until <= told_until
    leads = False
    ids = []
    for change in story.changes:
        match change:
            case Acquired(leader_id=leader_id):
                assert not leads
                leads = True
                ids.append(leader_id)
            case Refreshed(leader_id=leader_id):
                assert leads
                ids.append(leader_id)
            case Revoked() | Fenced():
                assert leads
                leads = False
    assert len(set(ids)) == len(ids)
    assert leads == (story.tenure.leader_id is not None)
