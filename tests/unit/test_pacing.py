"""What refused rows may cost the other rows of a shard, whoever refuses them and however many."""

import random
from collections import Counter

import pytest

from thresher.delivery.waiting.pacing import MOST_TOPICS, Pacing


class Shard:
    """A shard that reads rows of all topics that are not held, in steps of 50 ms. Every row of `bad` is refused."""

    def __init__(self, bad: set[str], *, took: float = 0.4) -> None:
        self.pacing, self.bad, self.took = Pacing(), bad, took
        self.good = {"good"}
        self.now = self.recovering = 0.0
        self.held: set[str] = set()
        self.tried: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()

    def run(self, seconds: float) -> "Shard":
        until = self.now + seconds
        while self.now < until:
            self.step()
        return self

    def step(self) -> None:
        self.now += 0.05
        self.pacing.ended(self.now)
        self.held -= set(self.pacing.go_on(self.now))
        read = sorted((self.bad | self.good) - self.held)
        waiting = self.pacing.waiting(read, self.now)
        self.held |= set(self.pacing.hold(waiting))
        sent = set(read) - set(waiting)
        together = {topic for topic in sent if not self.pacing.alone(topic)}
        self.send(together)
        for topic in sorted(sent - together):
            if self.send({topic}):
                # The others are read again.
                return

    def send(self, topics: set[str]) -> bool:
        """Send rows of these topics in one transaction; return whether it was refused."""
        self.tried.update(topics)
        if refused := sorted(topics & self.bad)[:1]:
            self.now += self.took
            self.recovering += self.took
            self.pacing.refused(refused, self.took, self.now)
        elif topics:
            self.pacing.took(topics)
            self.taken.update(topics)
        return bool(refused)


@pytest.mark.parametrize("topics", [1, 40, 400])
@pytest.mark.parametrize("took", [0.1, 1.0, 4.0])
def test_refused_rows_cost_a_tenth_of_the_time(topics: int, took: float) -> None:
    shard = Shard({f"bad{number}" for number in range(topics)}, took=took)
    shard.send({"good"})
    shard.run(120)
    assert shard.recovering <= 15 + 0.1 * 120 + 2 * took
    assert shard.taken["good"] >= 0.5 * (120 - shard.recovering) / 0.05


def test_suspects_take_turns() -> None:
    shard = Shard({f"bad{number}" for number in range(20)}).run(60)
    # What may be had in advance is used up.
    shard.tried.clear()
    shard.run(300)
    tried = [shard.tried[topic] for topic in shard.bad]
    assert min(tried) >= 2
    assert max(tried) <= 4 * min(tried)


def test_a_new_topic_is_tried_alone_and_goes_on_at_once() -> None:
    shard = Shard({"bad"}).run(60)
    shard.good |= {f"new{number}" for number in range(20)}
    shard.run(30)
    assert shard.pacing.alone("never seen")
    assert all(shard.taken[topic] > 20 for topic in shard.good)


def test_an_early_refusal_of_one_topic_keeps_no_other_apart() -> None:
    shard = Shard({"bad"})
    shard.step()
    assert shard.pacing.alone("bad")
    assert not shard.pacing.alone("another")


def test_a_topic_whose_refusals_end_goes_on_with_the_others() -> None:
    shard = Shard({f"bad{number}" for number in range(30)}).run(60)
    shard.good |= shard.bad
    shard.bad = set()
    shard.run(600)
    assert not shard.held
    assert not shard.pacing
    assert not any(shard.pacing.alone(topic) for topic in shard.good)


def test_every_topic_that_is_left_out_is_read_again() -> None:
    draw = random.Random(7)
    shard = Shard(set())
    names = [f"t{number}" for number in range(50)]
    for _ in range(40):
        shard.bad = set(draw.sample(names, draw.randrange(20)))
        shard.good = {"good", *draw.sample(names, 10)} - shard.bad
        shard.run(draw.uniform(0.1, 20))
    shard.bad, shard.good = set(), {"good"}
    shard.run(2_000)
    assert not shard.held
    assert not shard.pacing


def test_what_is_remembered_of_refusals_is_bounded() -> None:
    pacing = Pacing()
    for number in range(3 * MOST_TOPICS):
        pacing.refused([f"t{number}"], 0.5, float(number))
        pacing.hold([f"u{number}"])
    assert len(pacing._suspects) <= MOST_TOPICS
    assert len(pacing._held) <= MOST_TOPICS
    # A suspect that was forgotten is still tried alone: it has taken no record since.
    assert pacing.alone("t0")
