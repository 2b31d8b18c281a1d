"""Which attempt holds a shard by its claims, and how an attempt reacts to a blocked transactional id."""

from dataclasses import replace
from typing import Any

import pytest

from thresher.delivery.carrier import Carrier, ShardIdentity
from thresher.delivery.claims import IDS_PER_SHARD, UNCLAIMED, Claim, decoded, holder
from thresher.delivery.effects import Blocked, Control, Holder, Init, ReadControl, ReadHolder, ReadProgress, WriteClaim
from thresher.delivery.rules import Rules
from thresher.kafka.problem import BrokerLost
from thresher.relay.protocol.progress import Origin, OutboxProgress, Progress

ORIGIN = Origin(outbox_id="ours", system_id="s", incarnation="1", term="now", shard=0)


def claim(id_index: int, claimant: str) -> Claim:
    return Claim(id_index=id_index, claimant=claimant)


@pytest.mark.parametrize("each", [claim(0, "a"), Claim(id_index=2, claimant="3d0e-11", number=7), UNCLAIMED])
def test_a_claim_is_read_as_it_was_written(each: Claim) -> None:
    assert decoded(each.encoded()) == each


@pytest.mark.parametrize(
    "key", [None, b"", b"k", b"claim", b"claim/x/a/1", b"claim/1/a", b"claim/1/a/b", b"\xff/1/a/1"]
)
def test_any_other_key_is_no_claim(key: bytes | None) -> None:
    assert decoded(key) is None


def test_claims_of_the_same_id_count_in_their_order() -> None:
    assert holder(None, []) == UNCLAIMED
    assert holder(None, [claim(0, "a"), claim(0, "b")]) == claim(0, "b")


def test_only_the_holder_may_change_ids() -> None:
    moved = replace(claim(1, "a"), number=1)
    assert holder(claim(0, "a"), [moved]) == moved
    assert holder(claim(0, "a"), [claim(1, "b")]) == claim(0, "a")
    assert holder(claim(0, "a"), [claim(0, "b"), claim(1, "a")]) == claim(0, "b"), "fenced before the change"
    assert holder(claim(0, "a"), [claim(1, "b"), claim(1, "c")]) == claim(0, "a"), "b's claim is void"


class Recovery:
    """Runs recoveries of one attempt. Transactions of `blocked` ids do not end; `holder` answers `ReadHolder`."""

    def __init__(self) -> None:
        progress = OutboxProgress(outbox_id="ours", term="now", shard=0)
        self.carrier = Carrier(ShardIdentity(outbox_id="ours", term="now", shard=0), Rules(), progress)
        self.blocked: set[int] = set()
        self.holder = Holder(id_index=0, ours=False)
        self.inits: list[int] = []
        self.doubts = 0

    def run(self) -> list[int]:
        """Recover, and return the transactional ids that were initialised."""
        self.inits = []
        steps = self.carrier.recover()
        answer: Any = None
        try:
            while True:
                answer = self.answer(steps.send(answer))
        except StopIteration:
            return self.inits

    def answer(self, effect: Any) -> Any:
        match effect:
            case ReadControl():
                return Control(outbox_id="ours", term="now", system_id="s", incarnation="1")
            case Init(id_index=id_index):
                self.inits.append(id_index)
                return Blocked("narrow/0 has no leader") if id_index in self.blocked else None
            case WriteClaim() if self.doubts:
                self.doubts -= 1
                return False
            case WriteClaim():
                if self.holder.ours or self.holder.id_index == self.inits[-1]:
                    self.holder = Holder(id_index=self.inits[-1], ours=True)
            case ReadHolder():
                return self.holder
            case ReadProgress():
                return [Progress(origin=ORIGIN, number=1)]
        return None


def test_the_holder_of_a_blocked_id_goes_on_with_another() -> None:
    recovery = Recovery()
    assert recovery.run() == [0]
    recovery.blocked = {0, 1}
    assert recovery.run() == [0, 1, 2]
    assert recovery.run() == [2]


def test_an_attempt_without_the_blocked_id_waits() -> None:
    recovery = Recovery()
    recovery.blocked = {0}
    with pytest.raises(BrokerLost, match="narrow/0 has no leader"):
        recovery.run()
    assert recovery.inits == [0]


def test_a_new_attempt_follows_the_holder_to_its_id() -> None:
    for blocked in ([], [0]):
        recovery = Recovery()
        recovery.blocked, recovery.holder = set(blocked), Holder(id_index=2, ours=False)
        assert recovery.run() == [0, 2]


def test_a_displaced_holder_leaves_and_fences_nobody() -> None:
    recovery = Recovery()
    recovery.run()
    recovery.blocked, recovery.holder = {0}, Holder(id_index=1, ours=False)
    with pytest.raises(BrokerLost):
        recovery.run()
    assert recovery.inits == [0]


def test_an_attempt_waits_when_all_its_ids_are_blocked() -> None:
    recovery = Recovery()
    recovery.run()
    recovery.blocked = set(range(IDS_PER_SHARD))
    with pytest.raises(BrokerLost):
        recovery.run()
    assert recovery.inits == list(range(IDS_PER_SHARD))


def test_an_uncertain_claim_is_repeated_and_finally_given_up() -> None:
    recovery = Recovery()
    recovery.doubts = 2
    assert recovery.run() == [0, 0, 0]
    recovery.doubts = 9
    with pytest.raises(BrokerLost, match="may not have been committed"):
        recovery.run()


def test_a_copy_of_an_older_claim_moves_nothing_back() -> None:
    first, moved = Claim(id_index=0, claimant="U", number=1), Claim(id_index=1, claimant="U", number=2)
    # The last claim is a foreign copy with a valid seal.
    assert holder(first, [moved, first]) == moved
    assert holder(first, [moved, replace(moved, id_index=2, number=3)]).id_index == 2
