"""A protocol against a model of Kafka and of the table: any step may be an attempt's last one, or come late."""

import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.relay.model import (
    FILTERED_OUT,
    GOOD,
    MALFORMED,
    MERGED,
    NAMED_POISON,
    NO_PARTITION,
    POISON,
    REROUTED,
    Attempt,
    SessionLost,
    World,
)
from thresher.core.errors import Superseded
from thresher.delivery.claims import IDS_PER_SHARD
from thresher.delivery.rules import Poison

# About three in four can be sent.
NATURES = [*[GOOD] * 16, NAMED_POISON, POISON, POISON, FILTERED_OUT, MALFORMED, NO_PARTITION]
NATURES += [REROUTED, REROUTED, MERGED, MERGED]
KEYS = [b"k", b"k", b"k", b"l", None]
choices = st.integers(0, 20)
lucks = st.integers(0, 10_000)


class Relayed(RuleBasedStateMachine):
    """Writers, attempts, zombies, operators and disasters, in any order."""

    marking = False

    @initialize(
        poison=st.sampled_from([Poison.DEAD_LETTER, Poison.BLOCK_KEY]),
        # A progress record has room for a whole batch, or for two rows.
        progress_bytes=st.sampled_from([900_000, 900_000, 4_096 + 40]),
        disasters=st.booleans(),
        stormy=st.booleans(),
        merging=st.booleans(),
    )
    def begin(self, poison: Poison, progress_bytes: int, disasters: bool, stormy: bool, merging: bool) -> None:
        self.world = World(poison, progress_bytes, stormy=stormy, marking=self.marking, merging=merging)
        self.disasters = disasters
        self.world.launch(self.world.terms[-1])

    def attempt(self, choice: int) -> Attempt:
        """Return an attempt, most often the newest."""
        attempts = self.world.attempts
        return attempts[-1] if choice < 12 else attempts[choice % len(attempts)]

    # Writers

    @rule(
        rows=st.lists(
            st.tuples(st.sampled_from("aab"), st.sampled_from(KEYS), st.sampled_from(NATURES)), min_size=1, max_size=4
        ),
        commits=st.sampled_from([True, True, True, False]),
    )
    def write(self, rows: list[tuple[str, bytes | None, int]], commits: bool) -> None:
        if self.disasters:
            self.back_up()
        if not self.world.merging:
            # Only a transform sends a row to another topic or key.
            rows = [(topic, key, GOOD if nature in {REROUTED, MERGED} else nature) for topic, key, nature in rows]
        topic, key, nature = rows[0]
        self.world.write(topic, key, nature)
        for topic, key, nature in rows[1:]:
            self.world.write(topic, key, nature, writer=len(self.world.writers) - 1)
        if commits:
            self.world.finish(-1, commit=True)

    @precondition(lambda self: self.world.writers)
    @rule(writer=choices, topic=st.sampled_from("ab"), key=st.sampled_from(KEYS))
    def write_more(self, writer: int, topic: str, key: bytes | None) -> None:
        self.world.write(topic, key, GOOD, writer)

    @precondition(lambda self: self.world.writers)
    @rule(writer=choices, commit=st.sampled_from([True, True, False]))
    def finish(self, writer: int, commit: bool) -> None:
        self.world.finish(writer, commit=commit)

    # Attempts

    @precondition(lambda self: self.world.attempts)
    @rule(choice=choices, steps=st.integers(1, 4), luck=lucks)
    def take_a_few_steps(self, choice: int, steps: int, luck: int) -> None:
        self.advance(choice, steps, luck)

    @precondition(lambda self: self.world.attempts)
    @rule(choice=choices, steps=st.integers(5, 30), luck=lucks)
    def take_many_steps(self, choice: int, steps: int, luck: int) -> None:
        self.advance(choice, steps, luck)

    @precondition(lambda self: len(self.world.attempts) > 1)
    @rule(steps=st.integers(10, 60), luck=lucks)
    def step_in_turns(self, steps: int, luck: int) -> None:
        """Let all attempts take a few steps in turn."""
        draw = random.Random(luck)
        for _ in range(steps):
            if len(self.world.attempts) < 4 and draw.random() < 0.1:
                self.world.launch(self.world.terms[-1])
            if self.world.attempts:
                self.world.step_with_threads(draw.choice(self.world.attempts), draw)

    def advance(self, choice: int, steps: int, luck: int) -> None:
        attempt, draw = self.attempt(choice), random.Random(luck)
        for _ in range(steps):
            if attempt not in self.world.attempts or not self.world.step_with_threads(attempt, draw):
                return

    @precondition(lambda self: any(a.recovered and a.ready is None for a in self.world.attempts))
    @rule(choice=choices, rows=st.sampled_from([1, 2, 4, 9]), turn=st.booleans(), at_once=st.booleans())
    def read_ahead(self, choice: int, rows: int, turn: bool, at_once: bool) -> None:
        attempts = [each for each in self.world.attempts if each.recovered and each.ready is None]
        attempt = attempts[choice % len(attempts)]
        try:
            if attempt.reading is None:
                self.world.look(attempt, rows, int(turn))
        except (SessionLost, Superseded):
            self.world.kill(attempt, settles=False)
            return
        if at_once:
            self.world.hand_over(attempt)

    @precondition(lambda self: any(a.settling for a in self.world.attempts))
    @rule(choice=choices)
    def settle(self, choice: int) -> None:
        attempts = [each for each in self.world.attempts if each.settling]
        attempt = attempts[choice % len(attempts)]
        try:
            self.world.settle_one(attempt)
        except (SessionLost, Superseded):
            self.world.kill(attempt, settles=False)

    @rule(older=st.sampled_from([0, 0, 0, 0, 1, 2]))
    def launch(self, older: int) -> None:
        if len(self.world.attempts) < 4:
            terms = self.world.terms
            self.world.launch(terms[max(0, len(terms) - 1 - older)])

    @precondition(lambda self: self.world.attempts)
    @rule(choice=choices, settles=st.booleans())
    def kill(self, choice: int, settles: bool) -> None:
        self.world.kill(self.attempt(choice), settles=settles)

    @rule(ends_sessions=st.booleans())
    def take_over(self, ends_sessions: bool) -> None:
        self.world.take_over(ends_sessions=ends_sessions)
        self.world.launch(self.world.terms[-1])

    @precondition(lambda self: self.world.orphans)
    @rule(choice=choices)
    def a_dead_clients_settling_is_done_late(self, choice: int) -> None:
        self.world.settle_orphan(choice)

    @precondition(lambda self: self.world.late_marks)
    @rule(choice=choices)
    def a_dead_clients_mark_is_done_late(self, choice: int) -> None:
        self.world.mark_late(choice)

    @precondition(lambda self: self.world.broker.late())
    @rule()
    def a_dead_clients_commit_arrives_late(self) -> None:
        self.world.late_commit()

    # Topics and operators

    @rule(topic=st.sampled_from("abx"), standing=st.sampled_from(["present", "present", "missing", "denied"]))
    def topic_changes(self, topic: str, standing: str) -> None:
        self.world.broker.topics[topic] = standing

    @rule(id_index=st.integers(0, IDS_PER_SHARD - 1))
    def a_transaction_cannot_end(self, id_index: int) -> None:
        self.world.broker.fail(id_index)

    @rule()
    def partitions_heal(self) -> None:
        self.world.broker.heal()

    @rule(seconds=st.sampled_from([1, 3, 6]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += seconds

    @precondition(lambda self: self.world.tables.dead)
    @rule(choice=choices, mended=st.sampled_from([True, True, False]))
    def replay(self, choice: int, mended: bool) -> None:
        self.world.replay(choice, mended=mended)

    # Disasters

    def back_up(self) -> None:
        self.world.snapshots.append(self.world.tables.snapshot())

    @precondition(lambda self: self.world.snapshots)
    @rule(choice=choices, soon=st.booleans())
    def restore(self, choice: int, soon: bool) -> None:
        self.world.restore(choice)
        if soon:
            self.world.launch(self.world.terms[-1])

    @precondition(lambda self: self.disasters and not self.world.attempts and not self.world.writers)
    @rule()
    def truncate(self) -> None:
        self.world.truncate()

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "world"):
            self.world.judge()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain(random.Random(0))
            self.world.judge_at_rest()
