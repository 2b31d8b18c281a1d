"""The tail's protocol against a model of the WAL, Kafka and dead rows: any step may be the last one, or come late."""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.property.examples import examples
from tests.tail.model import GOOD, MALFORMED, NAMED_POISON, POISON, TailWorld
from thresher.delivery.effects import AwaitSettled, Commit, Effect, Settle, Take

NATURES = [*[GOOD] * 14, NAMED_POISON, POISON, MALFORMED]
KEYS = [b"k", b"k", b"l", None]


class Tailed(RuleBasedStateMachine):
    """Writers, attempts, zombies, missing topics and keep-alives, in any order."""

    @initialize(seed=st.integers(0, 1 << 30), waiting=st.sampled_from([2, 100]), gone=st.sampled_from(["", "a", "b"]))
    def begin(self, seed: int, waiting: int, gone: str) -> None:
        self.world = TailWorld(seed, waiting)
        self.world.missing_topics |= {*gone}
        self.world.commit([("a", b"k", GOOD), ("b", b"k", GOOD), ("a", b"l", GOOD), ("b", b"l", GOOD)])

    @rule(
        rows=st.lists(
            st.tuples(st.sampled_from("aab"), st.sampled_from(KEYS), st.sampled_from(NATURES)), min_size=1, max_size=12
        )
    )
    def commit(self, rows: list[tuple[str, bytes | None, int]]) -> None:
        self.world.commit(rows)

    @rule(steps=st.integers(1, 40), reads=st.integers(0, 6), idle=st.booleans(), ticks=st.integers(0, 1))
    def go_on(self, steps: int, reads: int, idle: bool, ticks: int) -> None:
        if not self.world.attempts:
            self.world.launch()
        newest = self.world.attempts[-1]
        for step in range(steps):
            self.world.now += ticks * (step % 4 == 0)
            self.world.read(newest, reads, idle=idle)
            self.world.step(newest)

    @rule(choice=st.integers(0, 10), steps=st.integers(1, 6))
    def a_zombie_goes_on(self, choice: int, steps: int) -> None:
        if not self.world.attempts:
            return
        attempt = self.world.attempts[choice % len(self.world.attempts)]
        for _ in range(steps):
            self.world.read(attempt, 2, idle=False)
            self.world.step(attempt)
            self.world.settle(attempt)

    @rule(zombie=st.booleans())
    def crash(self, zombie: bool) -> None:
        if self.world.attempts and not zombie:
            self.world.attempts.pop()
        self.world.take_over()

    @rule(
        kind=st.sampled_from([Settle, Settle, Commit, AwaitSettled, Take]),
        which=st.integers(1, 3),
        reads=st.integers(1, 6),
    )
    def crash_before(self, kind: type[Effect], which: int, reads: int) -> None:
        """Kill a leader right before an effect of this kind, the first one or a later one."""
        if not self.world.attempts:
            self.world.launch()
        newest = self.world.attempts[-1]
        for _ in range(80):
            self.world.read(newest, reads, idle=False)
            if newest not in self.world.attempts:
                break
            which -= isinstance(newest.due, kind) and not getattr(newest.due, "recovering", False)
            if which < 0:
                # The effect is requested, so Kafka has the commit, but the settler has done nothing in the database.
                if kind is Settle:
                    self.world.step(newest)
                break
            self.world.step(newest)
        if newest in self.world.attempts:
            self.world.attempts.remove(newest)
        self.world.take_over()

    @rule(steps=st.integers(1, 30))
    def crash_before_dead_rows_are_durable(self, steps: int) -> None:
        """Let the reader hang while it sets dead changes aside again; other threads go on; then the attempt dies."""
        if not self.world.attempts:
            self.world.launch()
        newest = self.world.attempts[-1]
        for _ in range(60):
            if newest.owed:
                break
            self.world.step(newest)
            self.world.read(newest, 3, idle=False)
        for _ in range(steps):
            self.world.step(newest)
            self.world.settle(newest)
        if newest in self.world.attempts:
            self.world.attempts.remove(newest)
        self.world.take_over()

    @rule()
    def start_over(self) -> None:
        if self.world.attempts:
            self.world.attempts.pop()
        self.world.launch()

    @rule(share=st.floats(0, 1))
    def fail_over(self, share: float) -> None:
        self.world.fail_over(share)

    @rule()
    def make_slot_anew(self) -> None:
        self.world.make_slot_anew()

    @rule()
    def move_to_another_system(self) -> None:
        self.world.move_to_another_system()

    @rule(topic=st.sampled_from("ab"))
    def topic_goes(self, topic: str) -> None:
        self.world.missing_topics.add(topic)

    @rule()
    def topics_come(self) -> None:
        self.world.missing_topics.clear()

    @invariant()
    def nothing_is_lost_repeated_or_reordered(self) -> None:
        if hasattr(self, "world"):
            self.world.judge()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.missing_topics.clear()
        for _ in range(12_000):
            if not world.attempts:
                world.launch()
            newest = world.attempts[-1]
            world.read(newest, 5, idle=True)
            world.step(newest)
            world.settle(newest)
            world.now += 1
            if world.drained:
                break
        world.judge_end()


TestTail = Tailed.TestCase
TestTail.settings = settings(
    max_examples=examples(250), stateful_step_count=40, derandomize=True, deadline=None, phases=[Phase.generate]
)
