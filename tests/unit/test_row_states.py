"""Which rows may share a transaction while poison is suspected."""

from hypothesis import given
from hypothesis import strategies as st

from thresher.delivery.rules import Rules
from thresher.delivery.waiting.row_states import MOST_KEPT, RowKey, RowStates


def keys(*ids: int) -> list[RowKey]:
    return [(each, 0) for each in ids]


def test_all_rows_go_together_without_suspects() -> None:
    assert RowStates().fitting(keys(1, 2, 3)) == 3
    assert RowStates().fitting(keys(1)) == 1


def test_half_of_a_group_goes_alone() -> None:
    suspects = RowStates()
    suspects.suspect(keys(1, 2, 3, 4))
    assert suspects.fitting(keys(1, 2, 3, 4)) == 2
    assert suspects.fitting(keys(9, 8, 1, 2)) == 2, "other rows do not go with suspects"
    assert suspects.fitting(keys(1, 9)) == 1


def test_groups_do_not_go_together() -> None:
    suspects = RowStates()
    suspects.suspect(keys(1, 2, 3, 4))
    suspects.suspect(keys(5, 6, 7, 8))
    assert suspects.fitting(keys(1, 5)) == 1
    assert suspects.fitting(keys(5, 6, 7)) == 2


def test_the_other_half_is_cleared_once_poison_is_located() -> None:
    suspects = RowStates()
    suspects.suspect(keys(1, 2, 3, 4))
    suspects.suspect(keys(1, 2))
    assert suspects.fitting(keys(3, 4, 9)) == 3
    assert suspects.fitting(keys(1, 2)) == 1


def test_no_row_is_suspected_once_all_are_cleared() -> None:
    suspects = RowStates()
    suspects.suspect(keys(1, 2))
    for key in keys(1, 2):
        suspects.clear(key)
    assert not suspects


@given(
    rows=st.integers(1, 40),
    poison=st.sets(st.integers(0, 39), min_size=1, max_size=5),
    reads=st.lists(st.permutations(range(40)), min_size=1, max_size=5),
)
def test_all_poison_is_found_in_any_reading_order(rows: int, poison: set[int], reads: list[list[int]]) -> None:
    suspects = RowStates()
    left, found = set(range(rows)), set()
    for turn in range(2_000):
        order = [each for each in reads[turn % len(reads)] if each in left]
        if not order:
            break
        sent = order[: suspects.fitting(keys(*order))]
        if not poison & set(sent):
            left -= set(sent)
            for key in keys(*sent):
                suspects.clear(key)
        elif len(sent) == 1:
            left.discard(sent[0])
            found.add(sent[0])
            suspects.clear((sent[0], 0))
        else:
            suspects.suspect(keys(*sent))
    assert not left
    assert found == poison & set(range(rows))
    assert not suspects


def test_a_waiting_row_goes_alone() -> None:
    states = RowStates(60.0)
    assert states.wait((2, 0), "t", "not yet", 0.0)
    assert states.fitting(keys(1, 2, 3)) == 1
    assert states.fitting(keys(2, 3)) == 1
    states.clear((2, 0))
    assert states.fitting(keys(1, 2, 3)) == 3


def test_a_row_waits_during_the_grace_between_tries() -> None:
    states = RowStates(60.0)
    assert states.wait((1, 0), "t", "its time", 0.0, tried=True)
    state = states.waiting((1, 0))
    assert state is not None
    assert state.retry_at == 12.0
    assert states.waits_for("t")
    assert states.wait((1, 0), "t", "its time", 59.9)
    assert not states.wait((1, 0), "t", "its time", 60.0)


def test_a_wait_without_checks_begins_again() -> None:
    states = RowStates(5.0)
    assert states.wait((1, 0), "t", "not yet", 0.0)
    assert states.wait((1, 0), "t", "not yet", 31.0), "the state in between is not known"
    assert not states.wait((1, 0), "t", "not yet", 36.0)


def test_a_waiting_row_that_was_deleted_is_forgotten() -> None:
    states = RowStates(60.0)
    states.wait((1, 0), "t", "not yet", 0.0)
    states.wait((2, 0), "t", "not yet", 50.0)
    states.wait((3, 0), "u", "not yet", 0.0)
    assert states.forget_unseen(60.0) == []
    assert states.forget_unseen(61.0) == ["u"]
    assert states.forget_unseen(111.0) == ["t"]
    assert not states


def test_a_row_has_its_whole_grace_whichever_rows_waited_before() -> None:
    rules = Rules(grace_seconds=60.0, row_waited_seconds=50.0, row_waited_id=5)
    states = RowStates(rules.grace_seconds, rules.row_waited)
    earlier, later = keys(5, 6)
    assert states.wait(earlier, "t", "no partition", 0.0)
    assert states.wait(later, "t", "no partition", 0.0)
    assert states.ids == (5, 6)
    assert not states.wait(earlier, "t", "no partition", 10.0)
    assert states.wait(later, "t", "no partition", 10.0)
    assert not states.wait(later, "t", "no partition", 60.0)


def test_a_row_goes_on_with_the_wait_of_an_earlier_attempt() -> None:
    states = RowStates(60.0)
    one, other, gone = keys(1, 2, 3)
    states.go_on({one: 50.0, other: 20.0, gone: 59.0}, 100.0)
    assert states.wait(one, "t", "not yet", 105.0)
    assert states.waits(105.0) == {one: 55.0, other: 25.0, gone: 64.0}
    states.clear(other)
    assert not states.wait(one, "t", "not yet", 110.0)
    assert states.waits(161.0).keys() == {one}, "a row that was not read for long is forgotten"


def test_the_waits_of_a_bounded_number_of_rows_are_kept() -> None:
    states = RowStates(60.0)
    many = keys(*range(MOST_KEPT + 10))
    for key in many:
        states.wait(key, "t", "not yet", 0.0)
    assert list(states.waits(1.0)) == many[:MOST_KEPT]
