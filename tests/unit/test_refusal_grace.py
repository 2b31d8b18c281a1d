"""How long a competitor retries after refusals."""

from hypothesis import given
from hypothesis import strategies as st

from thresher.election.refusal_grace import RefusalGrace


def test_waits_grow_to_five_seconds_within_the_grace() -> None:
    grace, now, waits = RefusalGrace(grace_seconds=20.0), 100.0, []
    while not (grace := grace.refused(now)).over:
        waits.append(grace.wait_seconds)
        now += grace.wait_seconds
    assert waits[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert now == 120.0


def test_without_a_grace_the_first_refusal_is_the_last() -> None:
    assert RefusalGrace(grace_seconds=0.0).refused(1.0).over


def test_a_leader_gets_a_new_grace_at_once() -> None:
    refused = RefusalGrace(grace_seconds=20.0).refused(100.0).refused(119.0)
    assert refused.went_on(119.0, 119.5, leads=False).refused(120.0).over
    assert not refused.went_on(119.0, 119.5, leads=True).refused(120.0).over
    assert not refused.went_on(119.0, 129.5, leads=False).refused(130.0).over


def test_a_refusal_long_after_the_last_is_the_first() -> None:
    assert not RefusalGrace(grace_seconds=20.0).refused(100.0).refused(300.0).over


@given(grace=st.floats(0.1, 600.0), late=st.lists(st.floats(0.0, 4.0), max_size=400))
def test_a_competitor_gives_up_shortly_after_the_grace(grace: float, late: list[float]) -> None:
    allowed, now = RefusalGrace(grace_seconds=grace), 0.0
    for delay in late:
        allowed = allowed.refused(now)
        assert allowed.over == (now >= grace)
        if allowed.over:
            break
        assert now + allowed.wait_seconds <= grace or allowed.wait_seconds == 0.0
        now += allowed.wait_seconds + delay
