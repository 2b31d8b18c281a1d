"""When a standby looks at a lease again, and when it takes one that should have been renewed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from thresher.election.lease import Row, Seen, next_look
from thresher.election.neli import beat_seconds, session_seconds
from thresher.election.settings import ElectionSettings

ROW = Row(holder="somebody", token=7, until="2026-01-01 00:00:00+00", span_seconds=1.5, left_seconds=1.2)


def test_a_lease_is_looked_at_often_and_just_when_it_ends() -> None:
    assert next_look(ROW) == 0.2
    assert next_look(replace(ROW, left_seconds=0.07)) == 0.07
    assert 0 < next_look(replace(ROW, left_seconds=0.0)) < 0.05


def test_a_lease_that_is_renewed_is_never_stale() -> None:
    seen = Seen(row=ROW, since=0.0)
    for number in range(1, 20):
        seen = seen.of(replace(ROW, until=f"{number}"), float(number))
        assert not seen.stale(number + 1.0)


def test_a_lease_that_is_not_renewed_is_stale_after_twice_its_length_whatever_it_says() -> None:
    seen = Seen(row=ROW, since=10.0)
    seen = seen.of(replace(ROW, left_seconds=3600.0), 12.9)
    assert not seen.stale(12.9)
    assert seen.stale(13.1)


@given(st.floats(0.2, 600))
def test_a_leader_of_a_group_ends_before_its_session_does_and_beats_often_enough(timeout: float) -> None:
    settings = ElectionSettings(heartbeat_timeout_seconds=timeout)
    # The client's own heartbeats are 0.3 s apart.
    assert timeout + 0.3 < session_seconds(timeout)
    assert beat_seconds(settings) <= timeout / 2
