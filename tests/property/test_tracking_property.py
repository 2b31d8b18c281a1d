"""The tracker's decisions against a model of its messages, with crashes between any two effects.

A message whose End was there before its deadline is not redelivered. Any other one is, once, and not before its
deadline; or it is a dead letter, once, if it was rejected. The tracker is replaced at any moment, by one that knows the
committed offset alone, and retention removes all that is before that.

Hypothesis draws the rules and the seed of a long walk: chains of a few steps hardly ever write a Start anew.
"""

import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tracker.simulated_log import SimulatedLog
from thresher.tracker.protocol.tracking import Rules
from thresher.tracker.protocol.transaction import Dead, Redelivered

AFTER_MS = (60, 200, 1_000, 3_000, 20_000)
TIMES_MS = (1, 10, 150, 700, 2_500)
STEPS = 400
# For the deadlines, the grace and the marks of all that is left.
REST_MS = 40_000


@dataclass
class Message:
    """A message as its consumer knows it."""

    deadline_ms: int
    # By its consumer: nothing follows.
    settled: bool = False
    ended_in_time: bool = False
    ended: bool = False
    # Something came after its deadline, when it may have been redelivered already.
    doubtful: bool = False
    rejected: bool = False
    undelivered: bool = False


class Walk:
    """Consumers that write markers, and trackers that read them, in an order of chance."""

    def __init__(self, rules: Rules, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = SimulatedLog(rules=rules, seed=seed)
        self.messages: dict[int, Message] = {}
        self.checked = 0
        self.decided: set[int] = set()

    def run(self) -> None:
        steps = {
            self.start: 20, self.act: 20, self.time_passes: 15, self.strange_markers_come: 1, self.read_some: 10,
            self.ask: 10, self.step: 20, self.settle: 15, self.crash: 4, self.trim: 3,
        }  # fmt: skip
        for step in self.chance.choices([*steps], weights=[*steps.values()], k=STEPS):
            step()
            self.check()
        self.log.run(REST_MS, 500)
        self.check()
        left = {number for number, message in self.messages.items() if not message.ended} - self.decided
        assert not left, f"{left} were forgotten"
        assert not len(self.log.tracking.messages)
        assert self.log.committed == self.log.end

    def start(self) -> None:
        after = self.chance.choice(AFTER_MS)
        number = len(self.messages)
        self.messages[number] = Message(self.log.now_ms + after)
        self.log.start(number, after)

    def act(self) -> None:
        """A consumer does something with a message that it has."""
        held = [number for number, message in self.messages.items() if not message.settled]
        if not held:
            return
        number, after = self.chance.choice(held), self.chance.choice(AFTER_MS)
        kind = self.chance.choice(("end", "end", "keep alive", "keep alive", "nack", "give back", "reject"))
        message = self.messages[number]
        in_time = self.log.now_ms < message.deadline_ms
        message.settled = kind != "keep alive"
        message.doubtful = message.doubtful or not in_time
        if kind == "end":
            self.log.end_of(number)
            message.ended, message.ended_in_time = True, in_time and not message.doubtful
            return
        match kind:
            case "keep alive":
                self.log.keep_alive(number, after)
            case "nack":
                self.log.keep_alive(number, after, released=True)
            case "give back":
                after = 0
                self.log.keep_alive(number, after, released=True, undelivered=True)
                message.undelivered = True
            case "reject":
                after = 0
                self.log.keep_alive(number, after, reject_reason="no")
                message.rejected = True
        if in_time:
            message.deadline_ms = self.log.now_ms + after

    def time_passes(self) -> None:
        self.log.now_ms += self.chance.choice(TIMES_MS)

    def strange_markers_come(self) -> None:
        self.log.records.append((self.log.now_ms, b"no marker"))
        self.log.end_of(10_000)
        self.log.keep_alive(10_000, 5)

    def read_some(self) -> None:
        self.log.read(self.chance.randint(1, 8))

    def ask(self) -> None:
        self.log.ask(stale=self.chance.random() < 0.3)

    def step(self) -> None:
        self.log.step(self.act_meanwhile)

    def settle(self) -> None:
        """The tracker does all that it wants to, then time passes and it does one thing more."""
        self.log.settle()
        self.time_passes()
        self.log.read()
        self.log.ask()
        self.step()

    def crash(self) -> None:
        self.log.crash(committing=self.chance.random() < 0.5, meanwhile=self.act_meanwhile)

    def trim(self) -> None:
        self.log.trim()

    def act_meanwhile(self) -> None:
        for _ in range(self.chance.randint(0, 3)):
            self.act()
        if self.chance.random() < 0.1:
            # More than a small window remembers.
            for _ in range(40):
                self.start()

    def check(self) -> None:
        for decided in self.log.decided[self.checked :]:
            number = decided.id.offset
            message = self.messages[number]
            assert number not in self.decided, f"{decided} is the second one"
            self.decided.add(number)
            assert not message.ended_in_time, f"{decided} although it was ended in time"
            if message.doubtful:
                continue
            assert decided.at_ms >= message.deadline_ms, f"{decided} before {message.deadline_ms}"
            if message.rejected:
                assert isinstance(decided.fate, Dead)
                assert decided.fate.reason == "no"
            else:
                assert isinstance(decided.fate, Redelivered)
                assert decided.fate.marker.delivery_count == (1 if message.undelivered else 2)
                assert decided.fate.marker.value == b"%d" % number
        self.checked = len(self.log.decided)


# The same ones each time: a mutant is caught or not.
@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    behind=st.sampled_from([4, 20, 1_000]),
    rewrite=st.sampled_from([500, 5_000, 10**9]),
    window=st.sampled_from([30, 100_000]),
    seed=st.integers(0, 2**32),
)
def test_each_message_is_ended_or_redelivered_once_and_not_before_its_time(
    behind: int, rewrite: int, window: int, seed: int
) -> None:
    rules = Rules(markers_per_commit=5, rewrite_after_ms=rewrite, most_behind=behind, window=window)
    Walk(rules, seed).run()
