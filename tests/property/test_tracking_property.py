"""The tracker's decisions against a model of its messages, with crashes between any two effects.

A message whose End came before its deadline is not redelivered. Any other message is redelivered once, and not before
its deadline. A message that was rejected, or that the broker refuses, becomes a dead letter, once. A message whose id
another message gets is still redelivered, and neither is affected by the other's markers. The tracker may be replaced
at any moment by one that knows only the committed offset, and retention removes all records before that offset.

Hypothesis draws the rules and the seed of a long random walk: short sequences hardly ever copy a Start.
"""

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.property.examples import examples
from tests.tracker.simulated_log import QUEUE, SimulatedLog, StoreInMemory
from thresher.queue.wire.marker import SYNTHETIC, Marker, MarkerType, MessageId
from thresher.tracker.protocol import clock
from thresher.tracker.protocol.tracking import Rules
from thresher.tracker.protocol.transaction import Dead, Redelivered

AFTER_MS = (60, 200, 1_000, 3_000, 20_000)
# How early a redelivery may be with a jumping clock: by the slack, and by time that was not counted at the jump.
SLACK_MS = clock.SLACK_MS + int(clock.SILENT_SECONDS * 1000)
# The broker's clock at the start: no jump leads before 1970.
EPOCH_MS = 1_800_000_000_000
TIMES_MS = (1, 10, 150, 700, 2_500)
STEPS = 400
# Enough for the deadlines, the grace and the marks of all remaining messages.
REST_MS = 40_000


NOISE = random.Random(0).randbytes(3_000)
CONTENTS = (NOISE, NOISE[:1_000] + bytes(9_000))


@dataclass
class Message:
    """A message as its consumer knows it."""

    id: MessageId
    deadline_ms: int
    # Whether its markers name its origin: kafka-mq-go's do not.
    named: bool = True
    # Its consumer has settled it and writes no further marker.
    settled: bool = False
    ended_in_time: bool = False
    ended: bool = False
    # A marker came after its deadline, when it may have been redelivered already.
    doubtful: bool = False
    rejected: bool = False
    undelivered: bool = False
    # Another message has its id by now.
    displaced: bool = False


class Walk:
    """Consumers that write markers, and trackers that read them, in random order."""

    def __init__(self, rules: Rules, seed: int, *, jumps: bool = False, most_stored: int | None = None) -> None:
        """`jumps`: the broker's clock jumps. A restarted tracker cannot tell a jump from time that has passed.

        With `most_stored`, half of the contents are not small, and up to so many are kept in a store.
        """
        self.jumps, self.slack_ms = jumps, SLACK_MS if jumps else 0
        self.chance = random.Random(seed)
        self.log = SimulatedLog(rules=rules, seed=seed, ahead_ms=EPOCH_MS)
        self._large = most_stored is not None
        if most_stored is not None:
            self.log.store = StoreInMemory(most_stored)
            self.log.begin()
        self.messages: dict[int, Message] = {}
        self.checked = 0
        self.decided: set[int] = set()
        # Messages that the broker refused when they were sent alone.
        self.refused: set[int] = set()

    def run(self) -> None:
        steps = {
            self.start: 20, self.start_again: 2, self.start_anew: 2, self.send_with_delay: 2, self.act: 20,
            self.time_passes: 15, self.strange_markers_come: 1, self.read_some: 10, self.ask: 10, self.step: 20,
            self.fail: 2, self.settle: 15, (self.jump if self.jumps else self.crash): 4, self.trim: 3,
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
        self._start(MessageId(0, len(self.messages)), named=self.chance.random() < 0.5)

    def start_again(self) -> None:
        """Start a message a second time, unchanged."""
        held = [number for number, message in self.messages.items() if self._is_held(message)]
        if held:
            number, after = self.chance.choice(held), self.chance.choice(AFTER_MS)
            self.messages[number].deadline_ms = self.log.now_ms + after
            self._write_start(number, after)

    def start_anew(self) -> None:
        """Start a message under the id of another one, as after the message topic was recreated."""
        named = [message for message in self.messages.values() if message.named and not message.displaced]
        if not named:
            return
        other = self.chance.choice(named)
        other.displaced = True
        other.deadline_ms = min(other.deadline_ms, self.log.now_ms)
        self._start(other.id, named=True)

    def send_with_delay(self) -> None:
        number, after = len(self.messages), self.chance.choice(AFTER_MS)
        delayed = Message(MessageId(SYNTHETIC, number), self.log.now_ms + after, settled=True, undelivered=True)
        self.messages[number] = delayed
        self._write_start(number, after, undelivered=True)

    def act(self) -> None:
        """Let a consumer write a marker for a message that it holds."""
        held = [number for number, message in self.messages.items() if not message.settled]
        if not held:
            return
        number, after = self.chance.choice(held), self.chance.choice(AFTER_MS)
        kind = self.chance.choice(("end", "end", "keep alive", "keep alive", "nack", "give back", "reject"))
        message = self.messages[number]
        in_time = self.log.now_ms < message.deadline_ms - self.slack_ms
        message.settled = kind != "keep alive"
        message.doubtful = message.doubtful or not in_time
        if kind == "end":
            self._write(number, MarkerType.END)
            message.ended, message.ended_in_time = True, in_time and not message.doubtful
            return
        match kind:
            case "keep alive":
                self._write(number, MarkerType.KEEPALIVE, redeliver_after_ms=after)
            case "nack":
                self._write(number, MarkerType.KEEPALIVE, redeliver_after_ms=after, released=True)
            case "give back":
                after = 0
                self._write(number, MarkerType.KEEPALIVE, released=True, undelivered=True)
                message.undelivered = True
            case "reject":
                after = 0
                self._write(number, MarkerType.KEEPALIVE, reject_reason="no")
                message.rejected = True
        if in_time:
            message.deadline_ms = self.log.now_ms + after

    def _is_held(self, message: Message) -> bool:
        """Whether its consumer holds it, and it cannot have been redelivered yet."""
        in_time = self.log.now_ms < message.deadline_ms - self.slack_ms and not message.doubtful
        return in_time and not message.settled and not message.displaced

    def _start(self, id_: MessageId, *, named: bool) -> None:
        number, after = len(self.messages), self.chance.choice(AFTER_MS)
        self.messages[number] = Message(id_, self.log.now_ms + after, named=named)
        self._write_start(number, after)

    def _write_start(self, number: int, after_ms: int, *, undelivered: bool = False) -> None:
        marker = Marker(
            type=MarkerType.START,
            message_id=self.messages[number].id,
            redeliver_after_ms=after_ms,
            key=QUEUE,
            value=b"%d" % number,
            # Some are stored as they are, some compressed.
            headers=(("more", CONTENTS[number // 2 % 2]),) if self._large and number % 2 else (),
            undelivered=undelivered,
            **self._origin(number),
        )
        self.log.append(marker)

    def _write(self, number: int, type_: MarkerType, **fields: object) -> None:
        message = self.messages[number]
        marker = Marker(type=type_, message_id=message.id, **self._origin(number), **fields)  # type: ignore[arg-type]
        self.log.append(marker)

    def _origin(self, number: int) -> dict[str, Any]:
        message = self.messages[number]
        return {"origin_id": message.id, "enqueued_at_ms": number + 1} if message.named else {}

    def time_passes(self) -> None:
        self.log.now_ms += self.chance.choice(TIMES_MS)

    def strange_markers_come(self) -> None:
        self.log.records.append((self.log.now_ms + self.log.ahead_ms, b"no marker"))
        self.log.end_of(10_000)
        self.log.keep_alive(10_000, 5)

    def read_some(self) -> None:
        self.log.read(self.chance.randint(1, 8))

    def ask(self) -> None:
        self.log.ask(stale=self.chance.random() < 0.3)

    def step(self) -> None:
        self.log.step(self.act_meanwhile)

    def fail(self) -> None:
        """Let the next transaction fail, because of the broker or of a refused record."""
        tracking = self.log.tracking
        transaction = tracking.next(self.log.now_ms / 1000)
        if transaction is None:
            return
        if transaction.fates and self.chance.random() < 0.5:
            tracking.refused(transaction, "too large")
            if len(transaction.messages) == 1:
                self.refused.add(int(transaction.fates[0].marker.value))
        else:
            tracking.undone(transaction)

    def settle(self) -> None:
        """Let the tracker do all its work; then time passes, and it does one more transaction."""
        self.log.settle()
        self.time_passes()
        self.log.read()
        self.log.ask()
        self.step()

    def crash(self) -> None:
        self.log.crash(committing=self.chance.random() < 0.5, meanwhile=self.act_meanwhile)

    def jump(self) -> None:
        self.log.ahead_ms += self.chance.choice((-7_200_000, -1_000, -100, 100, 1_000, 3_600_000))

    def trim(self) -> None:
        self.log.trim()

    def act_meanwhile(self) -> None:
        for _ in range(self.chance.randint(0, 3)):
            self.act()
        if self.chance.random() < 0.1:
            # More markers than a small window remembers.
            for _ in range(40):
                self.start()

    def check(self) -> None:
        for decided in self.log.decided[self.checked :]:
            number = int(decided.fate.marker.value)
            message = self.messages[number]
            assert decided.id == message.id
            assert number not in self.decided, f"{decided} is the second one"
            self.decided.add(number)
            assert not message.ended_in_time, f"{decided} although it was ended in time"
            if message.doubtful:
                continue
            assert decided.at_ms >= message.deadline_ms - self.slack_ms, f"{decided} before {message.deadline_ms}"
            if message.rejected:
                assert isinstance(decided.fate, Dead)
                assert decided.fate.reason == "no"
            elif isinstance(decided.fate, Dead):
                assert decided.fate.kind == "refused"
                assert number in self.refused
            else:
                assert isinstance(decided.fate, Redelivered)
                assert decided.fate.marker.delivery_count == (1 if message.undelivered else 2)
        self.checked = len(self.log.decided)


# The same examples in each run: a mutant is always caught, or never. Without a seed they depend on the test's name, and
# 250 examples are few for rare orders: "tracker-later-marker-of-another-message-counts-for-a-copy" was caught by 4 of 8
# seeds.
@seed(5)
@settings(max_examples=examples(250), deadline=None, derandomize=True)
@given(
    behind=st.sampled_from([4, 20, 1_000]),
    rewrite=st.sampled_from([500, 5_000, 10**9]),
    window=st.sampled_from([30, 100_000]),
    seed=st.integers(0, 2**32),
)
def test_each_message_is_ended_or_redelivered_once_never_early(
    behind: int, rewrite: int, window: int, seed: int
) -> None:
    rules = Rules(markers_per_commit=5, rewrite_after_ms=rewrite, most_behind=behind, window=window)
    Walk(rules, seed).run()


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(behind=st.sampled_from([4, 1_000]), rewrite=st.sampled_from([500, 10**9]), seed=st.integers(0, 2**32))
def test_a_jump_of_the_brokers_clock_expires_and_stops_nothing(behind: int, rewrite: int, seed: int) -> None:
    rules = Rules(markers_per_commit=5, rewrite_after_ms=rewrite, most_behind=behind)
    Walk(rules, seed, jumps=True).run()


@settings(max_examples=examples(20), deadline=None, derandomize=True)
@given(
    behind=st.sampled_from([4, 1_000]),
    rewrite=st.sampled_from([500, 10**9]),
    seed=st.integers(0, 2**32),
    most=st.sampled_from([1, 5, 10**9]),
)
def test_where_contents_are_kept_makes_no_difference(behind: int, rewrite: int, seed: int, most: int) -> None:
    rules = Rules(markers_per_commit=5, rewrite_after_ms=rewrite, most_behind=behind)
    without, spilling = Walk(rules, seed, most_stored=0), Walk(rules, seed, most_stored=most)
    without.run()
    spilling.run()
    store = spilling.log.store
    assert store is not None
    assert store.taken
    assert spilling.log.decided == without.log.decided
    assert spilling.log.records == without.log.records
    assert not store.held, "the content of a message that is gone is forgotten"
    assert spilling.log.tracking.messages.contents.kept_bytes == 0
