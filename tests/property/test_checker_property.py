"""The checker accepts the records of a correct relay, and finds every fault that is planted in them."""

import random
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from thresher.testing.checker import FAULTS, Verdict, check
from thresher.testing.history import Content, Outcome, Transaction, identity
from thresher.testing.record import Read

PARTITIONS = 3
KEYS = ("a", "b", "c", "d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A load, the records of a correct relay, and a source of random choices."""

    load: list[Transaction]
    reads: list[Read]
    dead: set[str]
    filtered: set[str]
    draw: random.Random

    def judged(self, reads: list[Read] | None = None, *, repeats_allowed: bool = False) -> Verdict:
        read = self.reads if reads is None else reads
        return check(
            self.load, read, dead=self.dead, filtered=self.filtered, repeats_allowed=repeats_allowed,
            allowed_dead=len(self.dead),
        )  # fmt: skip

    @property
    def committed(self) -> bool:
        return any(each.outcome is Outcome.COMMITTED for each in self.load)


def transactions(draw: random.Random) -> list[Transaction]:
    """Return the transactions of several writers, on one clock; each writer does one after another."""
    load = []
    for writer in range(draw.randint(1, 4)):
        clock, row = draw.randint(0, 10), 0
        for number in range(draw.randint(0, 5)):
            begin, end = clock, clock + draw.randint(1, 12)
            clock = end + draw.randint(0, 6)
            size = draw.randint(1, 4)
            rows = tuple((row + step, draw.choice((*KEYS, None))) for step in range(size))
            row += size
            outcome = draw.choices(list(Outcome), weights=(6, 1, 1))[0]
            ended = None if outcome is Outcome.UNKNOWN and draw.random() < 0.5 else end
            contents = tuple(Content(topic="t", value=f"{writer}.{number}.{row}") for row, _ in rows)
            load.append(
                Transaction(
                    run="r", writer=writer, number=number, begin=begin, end=ended, outcome=outcome, rows=rows,
                    contents=contents,
                )
            )  # fmt: skip
    return sorted(load, key=lambda each: each.begin)


def relayed(load: list[Transaction], away: set[str], draw: random.Random) -> list[Read]:
    """Return the records of a correct relay: each key in commit order, the keys interleaved at random."""
    moments = []
    for each in load:
        if each.outcome is Outcome.COMMITTED:
            assert each.end is not None
            moments.append((draw.uniform(each.begin, each.end), each))
        elif each.outcome is Outcome.UNKNOWN and draw.random() < 0.5:
            moments.append((draw.uniform(each.begin, each.begin + 200), each))
    streams: dict[str, list[tuple[str, str | None, str | None]]] = {}
    for _, each in sorted(moments, key=lambda pair: pair[0]):
        for (number, key), content in zip(each.rows, each.contents, strict=True):
            name = identity(each.run, each.writer, number)
            if name not in away:
                streams.setdefault(name if key is None else f"key {key}", []).append((name, key, content.value))
    offsets = [0] * PARTITIONS
    reads = []
    while streams:
        stream = draw.choice(sorted(streams))
        name, key, value = streams[stream].pop(0)
        if not streams[stream]:
            del streams[stream]
        partition = draw.randrange(PARTITIONS) if key is None else KEYS.index(key) % PARTITIONS
        offset = offsets[partition]
        reads.append(Read(identity=name, key=key, topic="t", partition=partition, offset=offset, value=value))
        offsets[partition] += 1
    return reads


@st.composite
def cases(draw_from: st.DrawFn) -> Case:
    draw = random.Random(draw_from(st.integers(0, 2**32)))
    load = transactions(draw)
    committed = [name for each in load if each.outcome is Outcome.COMMITTED for name in each.identities()]
    away = [name for name in committed if draw.random() < 0.1]
    dead = {name for name in away if draw.random() < 0.5}
    filtered = set(away) - dead
    return Case(load=load, reads=relayed(load, set(away), draw), dead=dead, filtered=filtered, draw=draw)


def found(verdict: Verdict) -> dict[str, int]:
    return {name: count for name in FAULTS if (count := getattr(verdict, name))}


def rows_of(load: list[Transaction]) -> dict[str, tuple[Transaction, int, str | None]]:
    return {identity(each.run, each.writer, number): (each, number, key) for each in load for number, key in each.rows}


def must_precede(rows: dict[str, tuple[Transaction, int, str | None]], one: str, other: str) -> bool:
    """The order invariant for two rows of one key, exactly as specified."""
    (first, number, _), (second, later, _) = rows[one], rows[other]
    if first is second:
        return number < later
    return first.outcome is Outcome.COMMITTED and first.end is not None and first.end < second.begin


def out_of_order(load: list[Transaction], reads: list[Read]) -> int:
    """Count the rows out of order, by comparing every row with every row read before it."""
    rows = rows_of(load)
    count = 0
    for at, late in enumerate(reads):
        same_key = [early for early in reads[:at] if late.key is not None and early.key == late.key]
        strayed = bool(same_key) and all(early.partition != late.partition for early in same_key)
        count += strayed or any(
            must_precede(rows, late.identity, early.identity) for early in same_key if early.partition == late.partition
        )
    return count


@given(case=cases())
def test_a_correct_relay_has_no_fault(case: Case) -> None:
    for repeats_allowed in (False, True):
        verdict = case.judged(repeats_allowed=repeats_allowed)
        assert verdict.ok == case.committed, verdict.examples
        assert found(verdict) == {}
        assert verdict.read == len(case.reads)


@given(case=cases())
def test_pending_rows_are_no_fault_and_no_pass(case: Case) -> None:
    gone = [each for each in case.reads if case.draw.random() < 0.3]
    kept = [each for each in case.reads if each not in gone]
    pending = {each.identity for each in gone}
    verdict = check(
        case.load, kept, dead=case.dead, filtered=case.filtered, pending=pending, allowed_dead=len(case.dead)
    )
    assert found(verdict) == {}
    assert verdict.pending == len(pending)
    assert verdict.ok == (not pending and case.committed)


@given(case=cases())
def test_each_missing_row_is_lost(case: Case) -> None:
    committed = {n for each in case.load if each.outcome is Outcome.COMMITTED for n in each.identities()}
    reads = [each for each in case.reads if case.draw.random() < 0.8]
    missing = committed & ({each.identity for each in case.reads} - {each.identity for each in reads})
    assert found(case.judged(reads)) == ({"lost": len(missing)} if missing else {})


@given(case=cases(), repeats_allowed=st.booleans())
def test_each_planted_phantom_is_found(case: Case, repeats_allowed: bool) -> None:
    rolled_back = [
        (name, key) for name, (each, _, key) in rows_of(case.load).items() if each.outcome is Outcome.ROLLED_BACK
    ]
    planted = [*rolled_back, ("r.9.9", "a"), ("s.0.0", "b"), ("", None)]
    name, key = case.draw.choice(planted)
    phantom = Read(identity=name, key=key, topic="t", partition=0, offset=99)
    at = case.draw.randint(0, len(case.reads))
    reads = [*case.reads[:at], phantom, *case.reads[at:]]
    assert found(case.judged(reads, repeats_allowed=repeats_allowed)) == {"phantom": 1}


@given(case=cases())
def test_each_planted_duplicate_is_found_unless_adjacent_and_allowed(case: Case) -> None:
    assume(case.reads)
    at = case.draw.randrange(len(case.reads))
    again = case.reads[at]
    place = case.draw.randint(at + 1, len(case.reads))
    partition = case.draw.choice((again.partition, case.draw.randrange(PARTITIONS)))
    reads = [*case.reads[:place], replace(again, offset=99, partition=partition), *case.reads[place:]]
    assert found(case.judged(reads)) == {"duplicated": 1}
    between = [each for each in case.reads[at + 1 : place] if each.key == again.key]
    allowed = again.key is None or (not between and partition == again.partition)
    verdict = case.judged(reads, repeats_allowed=True)
    assert (found(verdict), verdict.repeated) == (({}, 1) if allowed else ({"duplicated": 1}, 0))


@given(case=cases())
def test_each_altered_record_is_found(case: Case) -> None:
    assume(case.reads)
    changes: list[dict[str, Any]] = [{"value": "x"}, {"value": None}, {"topic": "u"}, {"headers": "h"}, {"key": "x"}]
    altered = set(case.draw.sample(range(len(case.reads)), case.draw.randint(1, len(case.reads))))
    reads = [
        replace(each, **case.draw.choice(changes)) if at in altered else each for at, each in enumerate(case.reads)
    ]
    assert found(case.judged(reads)) == {"altered": len(altered)}


@given(case=cases())
def test_each_row_that_is_read_and_dead_is_found(case: Case) -> None:
    assume(case.reads)
    case.dead.add(case.draw.choice(case.reads).identity)
    assert found(case.judged()) == {"duplicated": 1}


@given(case=cases())
def test_each_planted_inversion_is_found(case: Case) -> None:
    rows = rows_of(case.load)
    pairs = [
        (early, late)
        for late in range(len(case.reads))
        for early in range(late)
        if case.reads[early].key is not None
        and case.reads[early].key == case.reads[late].key
        and must_precede(rows, case.reads[early].identity, case.reads[late].identity)
    ]
    assume(pairs)
    early, late = case.draw.choice(pairs)
    reads = list(case.reads)
    reads[early], reads[late] = reads[late], reads[early]
    assert set(found(case.judged(reads))) == {"reordered"}


@given(case=cases())
def test_each_key_in_a_second_partition_is_found(case: Case) -> None:
    candidates = [
        at
        for at, each in enumerate(case.reads)
        if each.key is not None and any(other.key == each.key for other in case.reads if other is not each)
    ]
    assume(candidates)
    reads = list(case.reads)
    at = case.draw.choice(candidates)
    reads[at] = replace(reads[at], partition=(reads[at].partition + 1) % PARTITIONS)
    assert found(case.judged(reads)) == {"reordered": 1}


@given(case=cases(), strays=st.booleans())
def test_any_order_of_reads_is_judged_as_the_invariant_says(case: Case, strays: bool) -> None:
    reads = list(case.reads)
    case.draw.shuffle(reads)
    if strays:
        reads = [replace(each, partition=case.draw.choice((each.partition, 0))) for each in reads]
    expected = out_of_order(case.load, reads)
    assert found(case.judged(reads)) == ({"reordered": expected} if expected else {})
