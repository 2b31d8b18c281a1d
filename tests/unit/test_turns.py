"""Which reads of a head go by age."""

from thresher.relay.turns import Turns


def went(turns: Turns, reads: int, seconds: float = 0.1) -> list[bool]:
    """Have it take in full reads of even buckets, and return which went by age."""
    found = []
    for _ in range(reads):
        found.append(turns.by_age)
        turns.learn(1_000, 1_000, seconds if turns.by_age else 0.1, even=True)
    return found


def test_by_age_only_after_all_buckets_were_seen_to_have_many_and_not_for_long() -> None:
    assert went(Turns(share=0.5), 15) == [False, *[True] * 6] * 2 + [False]


def test_one_bucket_with_much_is_no_reason() -> None:
    turns = Turns(share=0.5)
    turns.learn(1_000, 1_000, 0.1, even=False)
    assert not turns.by_age


def test_one_that_gives_little_ends_it() -> None:
    turns = Turns(share=0.5)
    turns.learn(1_000, 1_000, 0.1, even=True)
    turns.learn(99, 1_000, 9.9)
    assert not turns.by_age
    assert went(turns, 2) == [False, True]


def test_one_that_gives_much_and_not_all_is_followed_by_one_more() -> None:
    turns = Turns(share=0.5)
    turns.learn(1_000, 1_000, 0.1, even=True)
    turns.learn(999, 1_000, 9.9)
    assert went(turns, 3) == [True, False, True]


def test_one_that_gives_nothing_is_repeated_while_rows_are_on_their_way() -> None:
    turns = Turns(share=0.5)
    turns.learn(1_000, 1_000, 0.1, even=True)
    for _ in range(10):
        turns.learn(0, 1_000, 0.1)
        assert turns.by_age
    turns.stop()
    assert went(turns, 1) == [False]


def test_one_by_buckets_between_others_asks_for_a_part() -> None:
    turns = Turns(share=0.5)
    assert turns.rows_by_buckets(1_000) == 1_000
    assert went(turns, 7) == [False, *[True] * 6]
    assert not turns.by_age
    assert turns.rows_by_buckets(1_000) == 250
    turns.learn(100, 250, 0.1)
    assert turns.rows_by_buckets(1_000) == 1_000


def test_two_that_step_over_too_much_are_not_repeated_for_long() -> None:
    turns = Turns(share=0.5)
    assert went(turns, 3, 0.9) == [False, True, True]
    assert went(turns, 18, 0.9) == [False] * 16 + [True] * 2
    assert went(turns, 34, 0.9) == [False] * 32 + [True] * 2
    # One that is quick makes good again.
    assert went(turns, 65, 0.2) == [False] * 64 + [True]
    assert went(turns, 2, 0.9) == [True] * 2
    assert went(turns, 18, 0.9) == [False] * 16 + [True] * 2


def test_a_machine_that_stalls_once_is_no_reason() -> None:
    turns = Turns(share=0.5)
    assert went(turns, 2, 9.9) == [False, True]
    assert went(turns, 1) == [True]
    assert went(turns, 1, 9.9) == [True]
    assert went(turns, 3) == [True] * 3


def test_those_that_find_little_and_step_over_too_much_are_not_repeated_for_long_either() -> None:
    turns = Turns(share=0.5)
    went(turns, 2)
    for _ in range(2):
        assert turns.by_age
        turns.learn(500, 1_000, 0.9)
    assert went(turns, 17) == [False] * 16 + [True]


def test_nor_those_by_buckets_between_others() -> None:
    turns = Turns(share=0.5)
    assert went(turns, 6) == [False, *[True] * 5]
    turns.learn(1_000, 1_000, 0.9)
    assert turns.rows_by_buckets(1_000) == 250
    turns.learn(250, 250, 0.9, even=True, wanted=1_000)
    assert turns.rows_by_buckets(1_000) == 1_000
    assert went(turns, 17) == [False] * 16 + [True]


def test_what_one_takes_is_compared_to_a_speed_that_is_not_long_ago() -> None:
    turns = Turns(share=0.5)
    by_age = 0
    # The machine becomes slower little by little.
    for number in range(70):
        by_age += turns.by_age
        turns.learn(1_000, 1_000, 0.1 * 1.05**number, even=True)
    assert by_age == 60


def test_never_where_it_is_not_allowed() -> None:
    assert went(Turns(share=0.12), 5) == [False] * 5
