"""Claims to a shard's ids against a model of the broker: an attempt that may write has read all earlier records.

Attempts take their steps in any order, are superseded and go on, and start over in place. An id whose transaction
cannot end accepts neither an init nor a transaction until it heals. Its last owner may then go on with it, unless its
epoch was raised. Each attempt writes the number after the last one that it read: a repeated number is a repeated row.
"""

import random
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.examples import examples
from tests.relay.model import Broker, Fenced
from thresher.delivery.carrier import Carrier, ShardIdentity
from thresher.delivery.claims import IDS_PER_SHARD, Claim, holder
from thresher.delivery.effects import Blocked, Control, Effect, Holder, Init, ReadHolder, ReadProgress, WriteClaim
from thresher.delivery.rules import Rules
from thresher.kafka.problem import BrokerLost
from thresher.relay.protocol.progress import Origin, OutboxProgress, Progress

CONTROL = Control(outbox_id="o", term="t", system_id="s", incarnation="1")
ORIGIN = Origin(outbox_id="o", system_id="s", incarnation="1", term="t", shard=0)


@dataclass
class Attempt:
    """An attempt that recovers, then writes numbers, one transaction each."""

    name: str
    carrier: Carrier = field(
        default_factory=lambda: Carrier(
            ShardIdentity(outbox_id="o", term="t", shard=0),
            Rules(),
            OutboxProgress(outbox_id="o", term="t", shard=0),
        )
    )
    recovering: Generator[Effect, Any, None] | None = None
    due: Effect | None = None
    id_index: int = 0
    epoch: int = -1
    claims: int = 0
    last: list[Progress] = field(default_factory=list)
    open: bool = False

    def start_over(self) -> None:
        self.open = False
        self.recovering = self.carrier.recover()
        self.due = next(self.recovering)


class Claims(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        # The partition has its first record, so that no attempt has to name its owner.
        self.broker = Broker(progress=[Progress(origin=ORIGIN, number=0)])
        self.attempts: list[Attempt] = []
        self.names = 0
        self.launch()

    @rule()
    def launch(self) -> None:
        if len(self.attempts) < 3:
            self.names += 1
            attempt = Attempt(str(self.names))
            attempt.start_over()
            self.attempts.append(attempt)

    @precondition(lambda self: self.attempts)
    @rule(choice=st.integers(0, 9), steps=st.integers(1, 20), luck=st.integers(0, 1_000))
    def go_on(self, choice: int, steps: int, luck: int) -> None:
        draw = random.Random(luck)
        attempt = self.attempts[choice % len(self.attempts)]
        for _ in range(steps):
            try:
                self.step(attempt, draw)
            except (Fenced, BrokerLost):
                self.attempts.remove(attempt)
                return

    @precondition(lambda self: self.attempts)
    @rule(choice=st.integers(0, 9))
    def start_over_in_place(self, choice: int) -> None:
        attempt = self.attempts[choice % len(self.attempts)]
        if attempt.recovering is None:
            attempt.start_over()

    @precondition(lambda self: self.attempts)
    @rule(choice=st.integers(0, 9))
    def kill(self, choice: int) -> None:
        self.attempts.pop(choice % len(self.attempts))

    @rule(choice=st.integers(0, 9), steps=st.integers(0, 20))
    def a_transaction_cannot_end(self, choice: int, steps: int) -> None:
        ids = [attempt.id_index for attempt in self.attempts] or list(range(IDS_PER_SHARD))
        self.broker.fail(ids[choice % len(ids)])
        if self.attempts and steps:
            # Usually the id's owner notices.
            self.go_on(choice, steps, steps)

    @rule(new=st.booleans())
    def partitions_heal(self, new: bool) -> None:
        self.broker.heal()
        if new:
            self.launch()
            self.go_on(len(self.attempts) - 1, 20, 0)

    @invariant()
    def no_number_is_written_twice(self) -> None:
        numbers = [each.number for each in self.broker.progress] if hasattr(self, "broker") else []
        assert numbers == list(range(len(numbers)))

    def teardown(self) -> None:
        """Check that a new attempt can claim the shard and write, once all faults are healed."""
        if not hasattr(self, "broker"):
            return
        self.broker.heal()
        before = len(self.broker.progress)
        for _ in range(10):
            newcomer = Attempt("newcomer")
            newcomer.start_over()
            draw = random.Random(0)
            try:
                for _ in range(40):
                    self.step(newcomer, draw)
            except BrokerLost:
                continue
            break
        assert len(self.broker.progress) > before
        self.no_number_is_written_twice()

    def step(self, attempt: Attempt, draw: random.Random) -> None:
        if attempt.recovering is not None:
            answer = self.answer(attempt, attempt.due, draw)
            try:
                attempt.due = attempt.recovering.send(answer)
            except StopIteration:
                attempt.recovering = None
        elif attempt.id_index in self.broker.blocked:
            # Requests get no answer; sooner or later the attempt discards its producer.
            if draw.random() < 0.5:
                attempt.start_over()
        elif not attempt.open:
            self.broker.staged(attempt.id_index, attempt.epoch)
            attempt.open = True
        else:
            self.broker.staged(attempt.id_index, attempt.epoch)
            self.broker.ended(attempt.id_index)
            attempt.open = False
            attempt.carrier.number += 1
            self.broker.progress.append(Progress(origin=ORIGIN, number=attempt.carrier.number))
            self.broker.written_by = Claim(id_index=attempt.id_index, claimant=attempt.name, number=attempt.claims)
            self.broker.claims = []

    def answer(self, attempt: Attempt, effect: Effect | None, draw: random.Random) -> Any:
        match effect:
            case Init(id_index=id_index):
                attempt.epoch, attempt.id_index = self.broker.init(id_index) or -1, id_index
                return Blocked("stuck") if attempt.epoch < 0 else None
            case WriteClaim():
                self.broker.staged(attempt.id_index, attempt.epoch)
                chance = draw.random()
                if chance > 0.05:
                    self.broker.ended(attempt.id_index)
                    attempt.claims += 1
                    claim = Claim(id_index=attempt.id_index, claimant=attempt.name, number=attempt.claims)
                    self.broker.claims.append(claim)
                return chance > 0.1
            case ReadHolder():
                for id_index in list(self.broker.transactions):
                    # No reader gets past an open transaction, until the broker's time-out ends it.
                    if draw.random() < 0.5:
                        raise BrokerLost("the end was not reached")
                    self.broker.epochs[id_index] = 1 + max(self.broker.epochs.values())
                    self.broker.ended(id_index)
                attempt.last = self.broker.progress[-1:]
                held = holder(self.broker.written_by, self.broker.claims)
                return Holder(id_index=held.id_index, ours=held.claimant == attempt.name)
            case ReadProgress():
                return attempt.last
            case _:
                return CONTROL


TestClaims = Claims.TestCase
TestClaims.settings = settings(max_examples=examples(300), stateful_step_count=40, deadline=None)
