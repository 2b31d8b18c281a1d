"""Relays elected by NELI, with default time-outs and under load: no row is lost, repeated or reordered.

A leader and all its processes are killed; another one is stopped and resumed. Many members join and leave its group,
its leader topic is deleted, and both servers are killed. `./run soak relay --minutes N --election neli` mixes these
faults and more at random.
"""

import pytest

from tests.faults.fault_schedule import Fault
from tests.faults.mixed_run import MixedRun
from tests.relay.elected_subject import ElectedRelay
from thresher.relay.settings import Delivery

# One fault after another, with time to recover from each: a session lasts 6 s.
FAULTS = (
    Fault(at=10.0, kind="kill-family"),
    Fault(at=18.0, kind="pause-family", parameters={"seconds": 9.0}),
    Fault(at=28.0, kind="storm", parameters={"seconds": 4.0}),
    Fault(at=30.0, kind="leader-topic-deleted"),
    Fault(at=34.0, kind="postgres-kill", parameters={"seconds": 0.5}),
    Fault(at=36.0, kind="broker-kill", parameters={"node": 1, "seconds": 0.5}),
)
# On the schedule's clock, which stops while nothing moves. A busy machine takes longer.
SECONDS, AT_MOST = 40.0, 300.0
RATE = 60.0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "delivery", [Delivery.EXACTLY_ONCE, pytest.param(Delivery.AT_LEAST_ONCE, marks=pytest.mark.soak)]
)
def test_elected_relays_keep_their_guarantees_through_leader_changes(delivery: Delivery) -> None:
    relay = ElectedRelay(rate=RATE, shards=2, delivery=delivery)
    with MixedRun(relay) as run:
        run.run(FAULTS, SECONDS, at_most=AT_MOST)
        verdict = run.verdict(everything=delivery is Delivery.AT_LEAST_ONCE)
        rows = relay.end_load().committed
        said = run.said(200_000)
    assert verdict.ok, (verdict.line(), verdict.examples)
    assert not run.outline.wrong, run.outline.wrong
    assert not run.outline.missed, run.outline.missed
    assert not run.outline.unreached
    assert set(run.outline.faults) == {fault.kind for fault in FAULTS}
    assert rows > 500
    # The successor of the killed leader, and that of the stopped one.
    assert said.count("leadership of crash acquired") >= 3, said
