"""A transform that sends rows of several topics to one: rows keep the order of the sent key, also after an absence."""

import random
from typing import Any

import pytest

from tests.relay.model import GOOD, MERGED, REROUTED, World
from thresher.delivery.row import Record, Row
from thresher.delivery.rules import Poison
from thresher.delivery.waiting.withheld import LeftOut, Withheld


class Steady(random.Random):
    """A random generator by which no fault happens, and a read returns all rows."""

    def random(self) -> float:
        return 0.5

    def choice(self, seq: Any) -> Any:
        return seq[-1]


class Run:
    """One attempt in a simulated world with a transform."""

    def __init__(self, poison: Poison = Poison.DEAD_LETTER, *, marking: bool) -> None:
        self.world = World(poison, 900_000, marking=marking, merging=True)
        self.world.launch(self.world.terms[-1])
        self.luck = Steady(0)

    def write(self, topic: str, key: bytes, nature: int) -> None:
        self.world.write(topic, key, nature)
        self.world.finish(-1, commit=True)

    def go_on(self) -> list[int]:
        """Run the attempt until it waits, and return the rows that were sent so far."""
        (attempt,) = self.world.attempts
        for _ in range(300):
            if not self.world.step(attempt, self.luck):
                break
        return [message.number for message in self.world.sent]


@pytest.fixture(params=[False, True], ids=["exactly once", "at least once"])
def run(request: pytest.FixtureRequest) -> Run:
    return Run(marking=request.param)


def test_rows_of_another_topic_do_not_overtake_held_rows(run: Run) -> None:
    run.world.broker.topics["x"] = "missing"
    run.write("a", b"k", REROUTED)
    assert run.go_on() == []
    # The topic is back, and the rows of one stored topic are still left out of reads.
    run.world.broker.topics["x"] = "present"
    run.write("b", b"k", REROUTED)
    assert run.go_on() == [0, 1]


def test_other_rows_are_sent_while_a_topic_is_missing(run: Run) -> None:
    run.world.broker.topics["x"] = "missing"
    run.write("a", b"k", REROUTED)
    run.write("b", b"k", GOOD)
    assert run.go_on() == [1]


def test_rows_with_merged_keys_are_sent_by_id(run: Run) -> None:
    for number in range(8):
        run.write("a", b"kl"[number % 2 : number % 2 + 1], MERGED)
    assert run.go_on() == list(range(8))


def test_an_unread_row_of_a_waiting_topic_is_not_overtaken(run: Run) -> None:
    """Rows of one stored topic may go to different topics: a waiting row says nothing about the next row."""
    run.world.broker.topics["x"] = "missing"
    run.write("a", b"k", REROUTED)
    assert run.go_on() == []
    run.write("a", b"k", MERGED)
    run.write("a", b"l", MERGED)
    assert run.go_on() == [1, 2]


@pytest.mark.parametrize("marking", [False, True], ids=["exactly once", "at least once"])
def test_a_mended_row_is_sent_to_the_topic_that_it_waited_for(marking: bool) -> None:
    """Later rows of its stored key went elsewhere before it was dead, so it must not follow them there."""
    run = Run(Poison.BLOCK_KEY, marking=marking)
    run.world.broker.topics["x"] = "missing"
    run.write("a", b"k", REROUTED)
    run.write("a", b"k", GOOD)
    assert run.go_on() == [1]
    run.world.now += 6
    run.go_on()
    run.write("a", b"k", GOOD)
    assert run.go_on() == [1]
    assert [entry.message.number for entry in run.world.tables.dead.values()] == [0]
    run.world.broker.topics["x"] = "present"
    run.world.replay(0, mended=True)
    assert run.go_on() == [1, 0, 2]
    assert run.world.sent_as[1:] == [("x", b"k"), ("a", b"k")]


def row(id_: int, topic: str = "x", key: bytes | None = b"k") -> Row:
    return Row(id_, 0, "t", b"stored", Record(topic, b"", key, -1, 0, None))


def test_rows_join_their_waiting_key_until_the_first_is_due() -> None:
    withheld = Withheld()
    assert withheld.leave_out([LeftOut(row(1), "it is away", 10.0)]) == ({1: 0}, {})
    assert withheld.why(("x", b"k"), 9.0) == "it is away"
    assert withheld.why(("x", b"l"), 9.0) is None
    # A row that joins does not prolong the wait.
    assert withheld.leave_out([LeftOut(row(2), "it is away", 11.0)]) == ({2: 0}, {})
    assert withheld.why(("x", b"k"), 10.0) is None


def test_a_row_overtakes_only_rows_of_its_topic_and_key() -> None:
    withheld = Withheld()
    withheld.leave_out([LeftOut(row(1), "", 1.0), LeftOut(row(2, key=None), "", 1.0)])
    assert not withheld.overtaken_by([row(3, key=b"l"), row(4, topic="y"), row(5, key=None)])
    assert withheld.overtaken_by([row(6)])
    withheld.release()
    assert not withheld.overtaken_by([row(6)])


def test_withheld_rows_are_bounded_and_a_sent_row_frees_room() -> None:
    withheld = Withheld(most_rows=2)
    rows = [LeftOut(row(id_, key=None), "", 1.0) for id_ in range(3)]
    assert withheld.leave_out(rows) == ({0: 0, 1: 0}, {})
    assert withheld.full
    # A row that is already withheld takes no further room.
    assert withheld.leave_out(rows[1:]) == ({1: 0}, {})
    withheld.readmit([rows[0].row])
    assert withheld.leave_out(rows[2:]) == ({2: 0}, {})


def test_only_the_first_of_several_waiting_rows_is_retried_soon() -> None:
    withheld = Withheld()
    waiting = [LeftOut(row(id_, key=b"%d" % id_), "", 1.0, "x") for id_ in range(3)]
    waiting += [LeftOut(row(id_, topic="y"), "", 1.0) for id_ in range(3, 6)]
    assert withheld.leave_out(waiting) == ({0: 0, 3: 0}, {1: 0, 2: 0, 4: 0, 5: 0})
    # The topic is back, also for a key without a waiting row.
    assert withheld.overtaken_by([row(9, key=b"9")])
    assert not withheld.overtaken_by([row(9, topic="y", key=b"9")])
