"""The hand-off against a model of Kafka: any step may fail, be the last one, or overlap with other members' steps."""

import random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.property.examples import examples
from tests.queue.broker_model import ANOTHER_QUEUES, GAP, OURS, PARTITIONS, REFUSED, TOPIC
from tests.queue.model import Member, World
from thresher.kafka.group.offsets import GroupOffset
from thresher.queue.hand_off.polled_records import Span
from thresher.queue.hand_off.protocol import Verdict, judge

NATURES = [*[OURS] * 8, *[ANOTHER_QUEUES] * 4, REFUSED, GAP]
choices = st.integers(0, 20)
lucks = st.integers(0, 10_000)
partitions = st.integers(0, PARTITIONS - 1)


class HandedOff(RuleBasedStateMachine):
    """Senders, members, rebalances, crashes and the tracker, in any order."""

    once = True

    @initialize(most_skipped=st.sampled_from([1, 3, 10]), luck=lucks)
    def begin(self, most_skipped: int, luck: int) -> None:
        self.world = World(once=self.once, most_skipped=most_skipped)
        self.launch(luck)

    def member(self, choice: int) -> Member:
        return self.world.members[choice % len(self.world.members)]

    @rule(sent=st.lists(st.tuples(partitions, st.sampled_from(NATURES)), min_size=1, max_size=12))
    def send(self, sent: list[tuple[int, int]]) -> None:
        for partition, nature in sent:
            self.world.send(partition, nature)

    @precondition(lambda self: self.world.members)
    @rule(choice=choices, steps=st.integers(1, 30), luck=lucks)
    def a_member_goes_on(self, choice: int, steps: int, luck: int) -> None:
        member, draw = self.member(choice), random.Random(luck)
        for _ in range(steps):
            self.world.step(member, draw)

    @precondition(lambda self: len(self.world.members) > 1)
    @rule(steps=st.integers(10, 60), luck=lucks)
    def members_go_on_in_turns(self, steps: int, luck: int) -> None:
        draw = random.Random(luck)
        for _ in range(steps):
            if draw.random() < 0.05:
                self.world.rebalance(draw)
            self.world.step(draw.choice(self.world.members), draw)

    @precondition(lambda self: len(self.world.members) < 3)
    @rule(luck=lucks)
    def launch(self, luck: int) -> None:
        self.world.launch()
        self.world.rebalance(random.Random(luck))

    @rule(luck=lucks)
    def rebalance(self, luck: int) -> None:
        self.world.rebalance(random.Random(luck))

    @precondition(lambda self: self.world.members)
    @rule(choice=choices)
    def kill(self, choice: int) -> None:
        self.world.kill(self.member(choice))

    @precondition(lambda self: self.world.members)
    @rule(choice=choices)
    def ack(self, choice: int) -> None:
        self.world.ack(self.member(choice))

    @precondition(lambda self: self.world.broker.open)
    @rule(choice=choices, arrives=st.booleans())
    def a_transaction_ends_late(self, choice: int, arrives: bool) -> None:
        self.world.end_transaction(choice, arrives=arrives)

    @rule(partition=partitions)
    def redeliver(self, partition: int) -> None:
        self.world.redeliver(partition)

    @rule(partition=partitions, records=st.integers(1, 4))
    def retention_removes_records(self, partition: int, records: int) -> None:
        self.world.remove(partition, records)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain(random.Random(0))
            self.world.judge_at_rest()


class HandedOffTwice(HandedOff):
    """The same without transactions: Starts first, then offsets. Each message has at least one Start."""

    once = False


TestExactlyOnce = HandedOff.TestCase
# Without shrinking: the first failure is enough to identify the broken rule.
TestExactlyOnce.settings = settings(
    max_examples=examples(400), stateful_step_count=40, derandomize=True, deadline=None, phases=[Phase.generate]
)
TestAtLeastOnce = HandedOffTwice.TestCase
TestAtLeastOnce.settings = settings(
    max_examples=examples(150), stateful_step_count=40, derandomize=True, deadline=None, phases=[Phase.generate]
)


@given(
    spans=st.dictionaries(partitions, st.builds(lambda begin, more: Span(begin, begin + more), choices, choices)),
    committed=st.booleans(),
    passes=st.lists(st.dictionaries(partitions, st.integers(1, 5), min_size=1), max_size=3),
)
def test_the_judge_decides_whether_a_transaction_was_committed(
    spans: dict[int, Span], committed: bool, passes: list[dict[int, int]]
) -> None:
    """Our transaction is committed or not; then others move the offsets of any partitions."""
    found = {each: GroupOffset(topic=TOPIC, partition=each, offset=5) for each in range(PARTITIONS)}
    for each, span in spans.items():
        found[each] = GroupOffset(topic=TOPIC, partition=each, offset=span.begin)
        if committed:
            found[each] = GroupOffset(topic=TOPIC, partition=each, offset=span.end, metadata="ours")
    for steps in passes:
        for each, step in steps.items():
            new = found[each].offset + step
            found[each] = GroupOffset(topic=TOPIC, partition=each, offset=new, metadata="another's")
    passed = {each for steps in passes for each in steps} & spans.keys()
    verdict = judge(spans, "ours", found)
    if committed and spans.keys() - passed:
        assert verdict is Verdict.COMMITTED
    elif passed or committed:
        # Only an empty batch has no offsets to compare.
        assert verdict is (Verdict.TAKEN_BY_ANOTHER if spans else Verdict.NOT_COMMITTED)
    else:
        assert verdict is Verdict.NOT_COMMITTED
