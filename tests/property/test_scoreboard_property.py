"""The scoreboard against a model: lists of the rows that wait, are in flight and are gone."""

import itertools
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.property.examples import examples
from thresher.delivery.row import Record, Row
from thresher.relay.protocol.scoreboard import Scoreboard

KEYS = [b"a", b"a", b"b", b"c", b"d", None]
# The sent key of a stored key: itself, a key shared with others, or none.
SENT = [None, None, None, b"a", b"b", b"none"]
SIZE = 10


def row(id_: int, key: bytes | None, sent: bytes | None = None) -> Row:
    made = {None: key, b"none": None}.get(sent, sent)
    return Row(id_, 0, "t", key, Record("t", b"v" * (SIZE - len(made or b"")), made, -1, 0, None))


class Scored(RuleBasedStateMachine):
    """Marks, waves, purges and failures in any order. Waves may be purged in any order too, and in parts."""

    @initialize(most=st.integers(1, 5))
    def begin(self, most: int) -> None:
        self.most = most
        self.board = Scoreboard(most)
        self.ids = itertools.count(1)
        self.waiting: list[Row] = []
        self.in_flight: list[Row] = []
        self.gone: set[int] = set()
        # By row: how many rows were sent while it was ready and had to wait.
        self.passed: dict[Any, int] = {}

    @rule(keys=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(SENT)), max_size=6))
    def mark(self, keys: list[tuple[bytes | None, bytes | None]]) -> None:
        rows = [row(next(self.ids), *key) for key in keys]
        self.board.add(rows)
        self.waiting += rows

    @rule()
    def wave(self) -> None:
        ready = self.ready()
        wave = self.board.wave()
        assert len(wave) == min(len(ready), self.most - len(self.in_flight)), (
            "a wave has all ready rows, up to its limit"
        )
        assert all(each in ready for each in wave), "a row was sent before an earlier row of its keys was purged"
        streams = [stream for each in wave for stream in _streams(each)]
        assert len(set(streams)) == len(streams), "a wave has two rows of a key"
        for each in ready:
            self.passed[each.id] = 0 if each in wave or not wave else self.passed.get(each.id, 0) + len(wave)
        for each in wave:
            self.waiting.remove(each)
        self.in_flight += wave

    @precondition(lambda self: self.in_flight)
    @rule(choices=st.lists(st.integers(0, 10), min_size=1, max_size=4))
    def purge(self, choices: list[int]) -> None:
        rows = self.chosen(choices)
        self.board.purged(rows)
        self.gone |= {each.id for each in rows}

    @precondition(lambda self: self.in_flight)
    @rule(choices=st.lists(st.integers(0, 10), min_size=1, max_size=4))
    def fail(self, choices: list[int]) -> None:
        rows = self.chosen(choices)
        self.board.again(rows)
        self.waiting = rows + self.waiting

    def chosen(self, choices: list[int]) -> list[Row]:
        return [self.in_flight.pop(choice % len(self.in_flight)) for choice in choices if self.in_flight]

    def ready(self) -> list[Row]:
        """Return the rows without an earlier row of their keys, waiting or in flight."""
        taken = {stream for each in self.in_flight for stream in _streams(each)}
        ready: list[Row] = []
        for each in self.waiting:
            if taken.isdisjoint(_streams(each)):
                ready.append(each)
            taken |= _streams(each)
        return ready

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "board"):
            return
        assert sorted(each.id for each in self.board.waiting) == sorted(each.id for each in self.waiting)
        assert self.board.in_flight == len(self.in_flight) <= self.most
        assert self.board.busy == bool(self.in_flight or self.ready())
        assert self.board.busy or not self.waiting, "rows wait, and none is ready"

    @invariant()
    def keys_take_turns(self) -> None:
        for id_, rows in getattr(self, "passed", {}).items():
            # No key is sent twice before a row that is ready: only keys that were ready too, or had a row in flight.
            others = len(self.gone) + len(self.waiting) + len(self.in_flight)
            assert rows <= others, f"{id_} was passed over by {rows} rows"

    @invariant()
    def hot_keys_are_those_with_many(self) -> None:
        if hasattr(self, "board"):
            keys = [stream for each in self.waiting for stream in _streams(each) if isinstance(stream, tuple)]
            for many, much in ((2, 1_000_000), (1_000_000, 2 * SIZE)):
                assert set(self.board.hot(many, much)) == {key for key in keys if keys.count(key) >= 2}


def _streams(each: Row) -> set[Any]:
    """Return a row's stored and sent keys; its id if it has none."""
    sent = each.plan.key if isinstance(each.plan, Record) else None
    return {("t", key) for key in (each.key, sent) if key is not None} or {each.id}


TestScoreboard = Scored.TestCase
TestScoreboard.settings = settings(max_examples=examples(100), stateful_step_count=40, derandomize=True, deadline=None)


def test_a_key_with_many_rows_waits_for_its_turn() -> None:
    board = Scoreboard(2)
    board.add([row(number, b"hot") for number in range(100)])
    board.add([row(100 + number, b"%d" % number if number % 2 else None) for number in range(10)])
    seen: list[int] = []
    while len(seen) < 12:
        wave = board.wave()
        seen += [each.id for each in wave]
        board.purged(wave)
    assert set(range(100, 110)) < set(seen)
