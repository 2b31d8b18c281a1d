"""The contract of every election: lease, NELI and the others."""

import itertools
import time
from collections.abc import Callable

import psycopg
import pytest

from tests.election.watching import SOON_SECONDS, Watched, overlaps
from tests.processes import eventually
from thresher.devstack.stack import Stack
from thresher.election.election import competitor
from thresher.election.leadership import Acquired, Leadership, Refreshed, Revoked
from thresher.election.problem import ElectionMisused
from thresher.election.settings import ElectionKind, ElectionSettings
from thresher.testing.leadership import Ballot, StagedLeadership

Make = Callable[[], Leadership]
STAGED = "staged"
COMPETING = [STAGED, ElectionKind.LEASE, ElectionKind.NELI]
ALL = [*COMPETING, ElectionKind.NONE]
# Long time-outs, so that no competitor loses its leadership because the machine is busy.
LEASE_SECONDS, HEARTBEAT_TIMEOUT_SECONDS = 8.0, 15.0

_numbers = itertools.count()


@pytest.fixture(scope="module")
def outbox_dsn(stack: Stack) -> str:
    """A database with an outbox, shared by all tests here: each test has its own relay name."""
    dsn = stack.postgres.create_database("leaderships")
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE outbox ()")
    return dsn


@pytest.fixture
def make(request: pytest.FixtureRequest, stack: Stack, outbox_dsn: str) -> Make:
    """Return a function that makes competitors for one relay."""
    ballot, name = Ballot(), f"contract-{next(_numbers)}"

    def made() -> Leadership:
        if request.param == STAGED:
            return StagedLeadership(ballot)
        return competitor(
            # One leader topic for all tests, as applications may share one; their groups differ.
            ElectionSettings(
                kind=request.param,
                leader_topic="contract.leader",
                lease_seconds=LEASE_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
            ),
            name=name,
            dsn=outbox_dsn,
            beside="outbox",
            kafka={"bootstrap.servers": stack.kafka.bootstrap},
        )

    return made


every = pytest.mark.parametrize("make", ALL, indirect=True)
competing = pytest.mark.parametrize("make", COMPETING, indirect=True)


@every
def test_a_sole_competitor_leads_refreshes_its_id_and_stops(make: Make) -> None:
    leadership = make()
    assert leadership.leader_id is None
    assert leadership.refresh() is None
    leadership.start()
    acquired = leadership.wait(SOON_SECONDS)
    assert isinstance(acquired, Acquired)
    assert leadership.leader_id == acquired.leader_id
    # The election has no trouble.
    eventually(lambda: leadership.trouble is None, SOON_SECONDS)

    another = leadership.refresh()
    assert another is not None
    assert another != acquired.leader_id
    assert leadership.leader_id == another
    assert leadership.wait(SOON_SECONDS) == Refreshed(leader_id=another)
    assert leadership.wait(0.01) is None

    with pytest.raises(ElectionMisused):
        leadership.start()

    began = time.monotonic()
    leadership.stop()
    assert leadership.leader_id is None
    assert leadership.refresh() is None
    assert leadership.wait(SOON_SECONDS) == Revoked()
    assert leadership.wait(600) is None
    leadership.stop()
    # No call has waited for long.
    assert time.monotonic() - began < 2 * SOON_SECONDS


@every
def test_a_competitor_stopped_before_its_start_never_leads(make: Make) -> None:
    leadership = make()
    leadership.stop()
    leadership.start()
    assert leadership.wait(0.3) is None
    assert leadership.leader_id is None
    leadership.stop()


@competing
def test_one_of_several_competitors_leads_and_is_succeeded_at_once(make: Make) -> None:
    with Watched(make()) as first:
        one = first.leading()
        with Watched(make()) as second, Watched(make()) as third:
            mine = first.leadership.refresh()
            assert mine is not None
            assert second.leadership.refresh() is None
            # After it resigns, another competitor leads; only then may it lead again.
            first.leadership.resign()
            assert first.leadership.leader_id != mine

            def another_leads(_: Watched) -> bool:
                # A slow group may choose it again, if it rejoins before the decision.
                if first.leads:
                    first.leadership.resign()
                return second.leads or third.leads

            second.until(another_leads)
            leader, standby = (second, third) if second.leads else (third, second)
            two = leader.leading()
            leader.leadership.stop()
            standby.until(lambda _: standby.leads or first.leads)
            follower = standby if standby.leads else first
            three = follower.leading()
            assert len({one, two, three}) == 3
            assert not leader.leads
        first.leading()
    assert not overlaps(each.claims for each in (first, second, third))
    assert any(isinstance(change, Revoked) for change in first.changes)
