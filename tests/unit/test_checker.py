from dataclasses import replace
from typing import Any

import pytest

from thresher.testing.checker import Verdict, check
from thresher.testing.history import Content, Outcome, Transaction
from thresher.testing.record import Read, headers_digest, value_digest


def transaction(
    number: int,
    *rows: tuple[int, str | None],
    at: tuple[int, int | None],
    outcome: Outcome = Outcome.COMMITTED,
    writer: int = 0,
    run: str = "r",
) -> Transaction:
    return Transaction(run=run, writer=writer, number=number, begin=at[0], end=at[1], outcome=outcome, rows=rows)


def read(*records: tuple[str, str | None], partition: int = 0, topic: str = "t", start: int = 0) -> list[Read]:
    return [
        Read(identity=identity, key=None if key is None else key.encode(), topic=topic, partition=partition, offset=at)
        for at, (identity, key) in enumerate(records, start)
    ]


# Sequential transactions: a and b, then a twice, then b.
LOAD = [
    transaction(0, (0, "a"), (1, "b"), at=(10, 20)),
    transaction(1, (2, "a"), (3, "a"), at=(30, 40)),
    transaction(2, (4, "b"), at=(50, 60)),
]
A = [("r.0.0", "a"), ("r.0.2", "a"), ("r.0.3", "a")]
B = [("r.0.1", "b"), ("r.0.4", "b")]
GOOD = read(*A) + read(*B, partition=1)


def faults(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.lost, verdict.phantom, verdict.duplicated, verdict.reordered


def judged(reads: list[Read], load: list[Transaction] | None = None, **options: Any) -> Verdict:
    return check(LOAD if load is None else load, reads, **options)


def test_a_correct_reading_has_figures_and_no_fault() -> None:
    verdict = judged(GOOD)
    assert verdict.ok
    assert verdict.line() == "lost 0, phantom 0, duplicated 0, out of order 0, altered 0"
    assert (verdict.committed, verdict.rolled_back, verdict.unknown, verdict.read, verdict.keys) == (5, 0, 0, 5, 2)
    assert (verdict.dead, verdict.filtered, verdict.pending, verdict.repeated) == (0, 0, 0, 0)
    assert verdict.examples == {}


@pytest.mark.parametrize("outcome", [None, Outcome.ROLLED_BACK, Outcome.UNKNOWN])
def test_a_history_without_a_committed_row_proves_nothing(outcome: Outcome | None) -> None:
    load = [] if outcome is None else [transaction(0, (0, "a"), at=(1, 2), outcome=outcome)]
    verdict = judged([], load)
    assert faults(verdict) == (0, 0, 0, 0)
    assert (verdict.ok, verdict.objections) == (False, ["no row was committed: this proves nothing"])


def test_a_committed_row_without_a_record_is_lost() -> None:
    verdict = judged(GOOD[:-1])
    assert not verdict.ok
    assert verdict.line() == "lost 1, phantom 0, duplicated 0, out of order 0, altered 0"
    assert verdict.examples == {
        "lost": ("r.0.4 key 'b', transaction 2 of writer 0 of run r: committed and never read",)
    }


@pytest.mark.parametrize("place", ["dead", "filtered"])
def test_a_row_that_is_dead_or_filtered_is_not_lost(place: str) -> None:
    options: dict[str, Any] = {place: {"r.0.4", "somebody else's"}, "allowed_dead": 1}
    verdict = judged(GOOD[:-1], **options)
    assert verdict.ok
    assert getattr(verdict, place) == 1


def test_dead_rows_beyond_the_allowed_number_fail() -> None:
    verdict = judged(GOOD[:-1], dead={"r.0.4"})
    assert faults(verdict) == (0, 0, 0, 0)
    assert (verdict.ok, verdict.objections) == (False, ["1 row is dead, at most 0 are allowed"])
    assert verdict.examples["dead"] == ("r.0.4 key 'b', transaction 2 of writer 0 of run r: set aside as dead",)
    two = {"r.0.3", "r.0.4"}
    assert [judged(GOOD[:2] + GOOD[3:-1], dead=two, allowed_dead=most).ok for most in (1, 2)] == [False, True]


def test_a_pending_row_is_counted_apart() -> None:
    verdict = judged(GOOD[:-1], pending={"r.0.4", "somebody else's"})
    assert faults(verdict) == (0, 0, 0, 0)
    assert verdict.pending == 1
    assert not verdict.ok
    assert "not read yet" in verdict.examples["pending"][0]
    assert judged(GOOD[:-1], pending={"r.0.4"}, allow_pending=True).ok


def test_a_row_read_but_still_stored_is_pending_too() -> None:
    verdict = judged(GOOD, pending={"r.0.4"})
    assert (verdict.ok, verdict.pending) == (False, 1)
    assert "read at t[1]@1" in verdict.examples["pending"][0]


def test_a_record_of_a_rolled_back_transaction_is_a_phantom() -> None:
    load = [*LOAD, transaction(3, (5, "a"), at=(70, 80), outcome=Outcome.ROLLED_BACK)]
    assert judged(GOOD, load).ok
    verdict = judged(GOOD + read(("r.0.5", "a"), start=3), load)
    assert faults(verdict) == (0, 1, 0, 0)
    assert verdict.rolled_back == 1
    assert verdict.examples["phantom"] == (
        "r.0.5 key 'a' at t[0]@3, transaction 3 of writer 0 of run r: it was rolled back",
    )


def test_a_rolled_back_row_among_dead_rows_is_a_phantom() -> None:
    load = [*LOAD, transaction(3, (5, "a"), at=(70, 80), outcome=Outcome.ROLLED_BACK)]
    verdict = judged(GOOD, load, dead={"r.0.5"}, allowed_dead=1)
    assert (verdict.ok, faults(verdict)) == (False, (0, 1, 0, 0))


@pytest.mark.parametrize("name", ["r.0.9", "other.0.0", "no identity at all"])
def test_a_record_absent_from_the_history_is_a_phantom(name: str) -> None:
    verdict = judged(GOOD + read((name, "a"), start=3))
    assert faults(verdict) == (0, 1, 0, 0)
    assert verdict.examples["phantom"] == (f"{name!r} key 'a' at t[0]@3: it is not in the history",)


def test_a_record_of_another_run_is_told_apart() -> None:
    verdict = judged(GOOD + read(("other.0.0", "a"), ("other.0.1", "a"), start=3), other_runs=True)
    assert (verdict.ok, faults(verdict), verdict.other_runs, verdict.read) == (True, (0, 0, 0, 0), 2, 7)


@pytest.mark.parametrize("name", ["r.0.9", "no identity at all", ""])
def test_beside_other_runs_a_phantom_is_still_one(name: str) -> None:
    verdict = judged(GOOD + read((name, "a"), start=3), other_runs=True)
    assert (faults(verdict), verdict.other_runs) == ((0, 1, 0, 0), 0)


def test_a_repeat_after_another_runs_record_is_not_direct() -> None:
    reads = [*GOOD, *read(("other.0.0", "a"), ("r.0.3", "a"), start=3)]
    assert faults(judged(reads, other_runs=True, repeats_allowed=True)) == (0, 0, 1, 0)


def test_a_record_without_an_identity_is_a_phantom() -> None:
    verdict = judged(GOOD + read(("", None), start=3))
    assert faults(verdict) == (0, 1, 0, 0)
    assert verdict.examples["phantom"] == ("'' key none at t[0]@3: it has no identity",)


@pytest.mark.parametrize("key", ["b", "", None])
def test_a_record_with_another_key_is_altered(key: str | None) -> None:
    verdict = judged(read(*A[:2], ("r.0.3", key)) + GOOD[3:])
    assert faults(verdict) == (0, 0, 0, 0)
    assert (verdict.ok, verdict.altered) == (False, 1)
    assert verdict.examples["altered"][0].endswith("its key was 'a'")
    assert judged(read(*A[:2], ("r.0.3", key)) + GOOD[3:], transformed=True).ok


def test_a_record_with_an_unexpected_key_is_altered() -> None:
    load = [transaction(0, (0, None), at=(10, 20))]
    assert judged(read(("r.0.0", "")), load).examples["altered"][0].endswith("its key was none")


WRITTEN = Content(topic="t", value=value_digest(b"v"), headers=headers_digest([("h", b"1")]), partition=0, timestamp=5)
SAME = Read(
    identity="r.0.0", key="a", topic="t", partition=0, offset=0, value=WRITTEN.value, headers=WRITTEN.headers,
    timestamp=5,
)  # fmt: skip
ONE = replace(transaction(0, (0, "a"), at=(10, 20)), contents=(WRITTEN,))


def test_an_unchanged_record_is_not_altered() -> None:
    assert judged([SAME], [ONE]).ok
    assert judged([replace(SAME, timestamp=9, stamped_by_broker=True)], [ONE]).ok, "the broker's own time"
    left = replace(ONE, contents=(replace(WRITTEN, partition=None, timestamp=None),))
    assert judged([replace(SAME, timestamp=9, partition=3)], [left]).ok, "the relay's choice"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("topic", "u"),
        ("value", value_digest(b"w")),
        ("value", value_digest(b"")),
        ("value", None),
        ("headers", ""),
        ("headers", headers_digest([("h", None)])),
        ("partition", 1),
        ("timestamp", 6),
        ("timestamp", None),
    ],
)
def test_a_record_with_other_content_is_altered(field: str, value: Any) -> None:
    reads = [replace(SAME, **{field: value})]
    verdict = judged(reads, [ONE])
    assert faults(verdict) == (0, 0, 0, 0)
    assert verdict.altered == 1
    assert f": its {field} was " in verdict.examples["altered"][0]
    assert judged(reads, [replace(ONE, contents=())]).ok, "a history without contents"
    assert judged(reads, [ONE], transformed=True).ok


def test_each_altered_record_counts_repeats_too() -> None:
    verdict = judged([SAME, replace(SAME, offset=1, value=None)], [ONE], repeats_allowed=True)
    assert (verdict.altered, verdict.repeated, verdict.duplicated) == (1, 1, 0)


def test_headers_differ_by_order_name_null_and_empty_value() -> None:
    pairs: list[list[tuple[str, bytes | str | None]]] = [
        [], [("a", None)], [("a", b"")], [("ab", b"")], [("a", b"b")], [("a", b""), ("a", b"")],
        [("a", b"1"), ("b", b"2")], [("b", b"2"), ("a", b"1")],
    ]  # fmt: skip
    assert len({headers_digest(each) for each in pairs}) == len(pairs)
    assert headers_digest([("pump-id", b"r.0.0")]) == ""
    assert headers_digest([("a", "ü")]) == headers_digest([("a", "ü".encode())])


def test_an_explicit_partition_may_separate_a_row_from_its_key() -> None:
    contents = tuple(Content(topic="t", value=None, partition=place) for place in (None, 1, None))
    load = [replace(transaction(0, (0, "a"), (1, "a"), (2, "a"), at=(10, 20)), contents=contents)]
    reads = read(("r.0.0", "a"), ("r.0.2", "a")) + read(("r.0.1", "a"), partition=1)
    assert judged(reads, load).ok
    assert faults(judged(read(("r.0.0", "a")) + read(("r.0.1", "a"), ("r.0.2", "a"), partition=1), load)) == (
        0,
        0,
        0,
        1,
    )


def test_the_longest_silence_is_computed_from_record_times() -> None:
    contents = (Content(topic="t", value=None), Content(topic="t", value=None, timestamp=5))
    # Committed 2 s after the epoch. The second row has an explicit timestamp, which does not count.
    load = [replace(transaction(0, (0, "a"), (1, "a"), at=(1, 10**9)), contents=contents, epoch=10**9)]
    reads = [replace(each, timestamp=ms) for each, ms in zip(read(A[0], ("r.0.1", "a")), (5_500, 5), strict=True)]
    assert judged(reads, load).longest_silence_seconds == 3.5
    assert judged(GOOD).longest_silence_seconds is None


def test_every_further_read_of_a_row_is_a_duplicate() -> None:
    verdict = judged(GOOD + read(B[1], B[1], partition=1, start=2))
    assert faults(verdict) == (0, 0, 2, 0)
    assert verdict.examples["duplicated"][0] == (
        "r.0.4 key 'b' at t[1]@2, transaction 2 of writer 0 of run r: read before at t[1]@1"
    )


def test_at_least_once_allows_a_direct_repeat() -> None:
    # Another key's record in between does not matter.
    reads = read(A[0], A[1], B[0], A[1], A[1], A[2], B[1])
    verdict = judged(reads, repeats_allowed=True)
    assert verdict.ok
    assert (verdict.repeated, verdict.read) == (2, 7)
    assert faults(judged(reads)) == (0, 0, 2, 0)


def test_at_least_once_refuses_a_repeat_after_another_record() -> None:
    verdict = judged(read(*A, A[0], *B), repeats_allowed=True)
    assert faults(verdict) == (0, 0, 1, 0)
    assert verdict.repeated == 0


def test_at_least_once_refuses_a_repeat_in_another_partition() -> None:
    verdict = judged(GOOD + read(A[2], partition=1, start=2), repeats_allowed=True)
    assert faults(verdict) == (0, 0, 1, 0)


def test_at_least_once_refuses_a_repeat_in_another_topic() -> None:
    assert faults(judged(GOOD + read(A[2], topic="u"), repeats_allowed=True)) == (0, 0, 1, 0)


def test_at_least_once_allows_repeats_of_unkeyed_rows_anywhere() -> None:
    load = [transaction(0, (0, None), (1, None), at=(1, 2))]
    reads = read(("r.0.0", None), ("r.0.1", None)) + read(("r.0.0", None), partition=1)
    assert judged(reads, load, repeats_allowed=True).ok
    assert faults(judged(reads, load)) == (0, 0, 1, 0)


def test_a_row_both_read_and_dead_is_a_duplicate() -> None:
    verdict = judged(GOOD, dead={"r.0.4"})
    assert faults(verdict) == (0, 0, 1, 0)
    assert "also among the dead rows" in verdict.examples["duplicated"][0]
    assert not judged(GOOD, dead={"r.0.4"}, repeats_allowed=True, allowed_dead=1).ok


def test_a_row_read_after_a_later_transaction_is_misordered() -> None:
    verdict = judged(read(A[1], A[2], A[0]) + GOOD[3:])
    assert faults(verdict) == (0, 0, 0, 1)
    (line,) = verdict.examples["reordered"]
    assert line == (
        "r.0.0 key 'a' at t[0]@2, transaction 0 of writer 0 of run r: committed before r.0.2 key 'a', "
        "transaction 1 of writer 0 of run r began, which was read at t[0]@0"
    )


def test_overlapping_transactions_do_not_hide_a_wrong_order() -> None:
    load = [
        transaction(0, (0, "a"), at=(10, 20)),
        transaction(0, (0, "a"), at=(15, 90), writer=1),
        transaction(1, (1, "a"), at=(30, 40)),
    ]
    late, between, early = ("r.0.1", "a"), ("r.1.0", "a"), ("r.0.0", "a")
    assert faults(judged(read(late, between, early), load)) == (0, 0, 0, 1)
    for reads in ((between, early, late), (early, between, late), (early, late, between)):
        assert judged(read(*reads), load).ok


def test_rows_of_one_transaction_keep_the_order_of_their_numbers() -> None:
    verdict = judged(read(A[0], A[2], A[1]) + GOOD[3:])
    assert faults(verdict) == (0, 0, 0, 1)
    assert "inserted before r.0.3 of the same transaction" in verdict.examples["reordered"][0]


def test_a_key_in_two_partitions_is_out_of_order() -> None:
    verdict = judged(read(*A[:2]) + read(A[2], B[0], B[1], partition=1))
    assert faults(verdict) == (0, 0, 0, 1)
    assert verdict.examples["reordered"][0].endswith("its key was in partition 0 before")


def test_a_key_has_an_order_in_each_topic() -> None:
    assert judged(read(A[1], A[2]) + read(A[0], topic="u", partition=3) + GOOD[3:]).ok


def test_overlapping_transactions_have_no_order() -> None:
    load = [transaction(0, (0, "a"), at=(10, 30)), transaction(0, (0, "a"), at=(30, 40), writer=1)]
    for reads in ((("r.0.0", "a"), ("r.1.0", "a")), (("r.1.0", "a"), ("r.0.0", "a"))):
        assert judged(read(*reads), load).ok


def test_rows_without_a_key_have_no_order() -> None:
    load = [transaction(0, (0, None), (1, None), at=(10, 20)), transaction(1, (2, None), at=(30, 40))]
    assert judged(read(("r.0.2", None), ("r.0.1", None)) + read(("r.0.0", None), partition=1), load).ok


def test_the_first_occurrence_of_a_duplicate_decides_on_its_order() -> None:
    assert faults(judged(read(*A, A[0]) + GOOD[3:])) == (0, 0, 1, 0)


@pytest.mark.parametrize("end", [None, 20])
def test_a_row_of_unknown_outcome_may_be_read(end: int | None) -> None:
    load = [
        transaction(0, (0, "a"), at=(10, end), outcome=Outcome.UNKNOWN),
        transaction(1, (1, "a"), at=(30, 40)),
    ]
    unknown, committed = ("r.0.0", "a"), ("r.0.1", "a")
    for reads in ((committed,), (unknown, committed), (committed, unknown)):
        verdict = judged(read(*reads), load)
        assert verdict.ok
        assert (verdict.unknown, verdict.committed) == (1, 1)


def test_a_row_of_unknown_outcome_overtakes_no_earlier_row() -> None:
    load = [
        transaction(0, (0, "a"), at=(10, 20)),
        transaction(1, (1, "a"), at=(30, None), outcome=Outcome.UNKNOWN),
    ]
    assert faults(judged(read(("r.0.1", "a"), ("r.0.0", "a")), load)) == (0, 0, 0, 1)


def test_several_runs_of_one_history_are_told_apart() -> None:
    load = [*LOAD, transaction(0, (0, "a"), at=(70, 80), run="s")]
    assert judged(GOOD + read(("s.0.0", "a"), start=3), load).ok
    assert faults(judged(GOOD, load)) == (1, 0, 0, 0)


def test_text_and_bytes_are_the_same_key() -> None:
    reads = [Read(identity=name, key=key, topic="t", partition=0, offset=0) for name, key in (*A, *B)]
    assert judged(reads).ok


def test_examples_are_cut_to_the_number_asked_for() -> None:
    verdict = judged([], examples=2)
    assert verdict.lost == 5
    assert [line.split()[0] for line in verdict.examples["lost"]] == ["r.0.0", "r.0.1"]
    assert judged([], examples=0).examples == {}
