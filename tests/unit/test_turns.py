"""Which reads of a head go by age, and which buckets are read by themselves."""

from thresher.relay.reading.turns import Turns

BUCKETS = range(0, 64, 8)
EVEN = dict.fromkeys(BUCKETS, 125)


def aging(*, buckets: range = BUCKETS) -> Turns:
    """Return one that has just found that all buckets have many, in 0.1 s for 1,000 rows."""
    turns = Turns(buckets, allowed=True)
    turns.by_buckets(1_000, 1_000, 0.1, even=True)
    return turns


def rests(turns: Turns, most: int = 2_000) -> int:
    """Return how many reads go by buckets, all of which have many, until one goes by age."""
    for count in range(most):
        if turns.by_age:
            return count
        turns.by_buckets(1_000, 1_000, 0.1, even=True)
    raise AssertionError("none went by age")


def test_by_age_only_after_all_buckets_were_seen_to_have_many() -> None:
    turns = Turns(BUCKETS, allowed=True)
    assert not turns.by_age
    turns.by_buckets(1_000, 1_000, 0.1, even=False)
    assert not turns.by_age
    turns.by_buckets(999, 1_000, 0.1, even=True)
    assert not turns.by_age
    turns.by_buckets(1_000, 1_000, 0.1, even=True)
    assert turns.by_age


def test_never_where_it_is_not_allowed() -> None:
    turns = Turns(BUCKETS, allowed=False)
    turns.by_buckets(1_000, 1_000, 0.1, even=True)
    assert not turns.by_age


def test_as_long_as_all_buckets_have_many() -> None:
    turns = aging()
    turns.from_head(EVEN, 1_000, 0.1)
    for _ in range(100):
        turns.went_on(EVEN, 0.1)
        assert turns.by_age
        assert not turns.quiet


def test_nothing_on_its_way_ends_it() -> None:
    turns = aging()
    turns.stop()
    assert not turns.by_age


def test_one_that_gives_little_ends_it() -> None:
    turns = aging()
    turns.from_head({0: 99}, 1_000, 0.1)
    assert not turns.by_age
    assert rests(turns) == 1


def test_one_that_gives_nothing_ends_it() -> None:
    turns = aging()
    turns.from_head({}, 1_000, 0.1)
    assert not turns.by_age
    assert rests(turns) == 1


def test_bursts_of_rows_do_not_each_begin_with_a_slow_read_from_the_head() -> None:
    turns = aging()
    turns.from_head(EVEN, 1_000, 10.0)
    turns.went_on(EVEN, 0.1)
    turns.end()
    assert not turns.by_age
    assert rests(turns) == 16


def test_one_that_was_worth_while_is_not_held_against_them() -> None:
    turns = aging()
    turns.from_head(EVEN, 1_000, 10.0)
    for _ in range(51):
        turns.went_on(EVEN, 1.0)
    turns.end()
    assert not turns.by_age
    assert rests(turns) == 1


def test_one_that_gives_much_and_not_all_is_followed_by_another() -> None:
    turns = aging()
    turns.from_head({0: 100}, 1_000, 0.1)
    assert turns.by_age


def test_buckets_that_have_little_are_read_by_themselves_every_few_reads() -> None:
    turns = aging()
    little = EVEN | {16: 25, 24: 26}
    told = []
    for _ in range(12):
        turns.went_on(little, 0.1)
        told.append(list(turns.quiet))
    assert told == [*[[]] * 5, [16]] * 2
    assert turns.by_age


def test_so_are_those_that_have_nothing() -> None:
    turns = aging()
    for _ in range(6):
        turns.went_on({bucket: 125 for bucket in BUCKETS if bucket > 8}, 0.1)
    assert turns.quiet == [0, 8]
    turns.quiet_read()
    assert not turns.quiet


def test_what_few_rows_say_of_them_is_not_taken_for_the_truth() -> None:
    turns = aging()
    for _ in range(15):
        turns.went_on({0: 8}, 0.1)
        assert turns.by_age
        assert not turns.quiet


def test_where_many_have_little_none_goes_by_age_for_long() -> None:
    turns = aging()
    for expected in (16, 32, 64, 128, 256, 512, 1_024, 1_024):
        for _ in range(6):
            assert turns.by_age
            turns.went_on({0: 1_000} | dict.fromkeys([8, 16, 24, 32], 300), 0.1)
        assert not turns.by_age
        assert not turns.quiet
        assert rests(turns) == expected
    # Once they are even again, that is forgotten.
    for _ in range(6):
        turns.went_on(EVEN, 0.1)
    for _ in range(6):
        turns.went_on({0: 1_000}, 0.1)
    assert rests(turns) == 16


def test_a_shard_of_one_bucket_is_even() -> None:
    turns = aging(buckets=range(1))
    for _ in range(12):
        turns.went_on({0: 1_000}, 0.1)
        assert turns.by_age
        assert not turns.quiet


def test_two_from_the_head_that_step_over_too_much_are_not_repeated_for_long() -> None:
    turns = aging()
    for expected in (16, 32, 64):
        turns.from_head(EVEN, 1_000, 0.9)
        assert turns.by_age
        turns.from_head(EVEN, 1_000, 0.9)
        assert rests(turns) == expected


def test_nor_are_those_that_find_little() -> None:
    turns = aging()
    for _ in range(2):
        assert turns.by_age
        turns.from_head({0: 500}, 1_000, 0.9)
    assert rests(turns) == 16


def test_a_machine_that_stalls_once_is_no_reason() -> None:
    turns = aging()
    for _ in range(5):
        turns.from_head(EVEN, 1_000, 9.9)
        turns.from_head(EVEN, 1_000, 0.1)
    assert turns.by_age


def test_one_from_which_others_went_on_for_much_longer_was_worth_while() -> None:
    turns = aging()
    for _ in range(5):
        turns.from_head(EVEN, 1_000, 0.9)
        for _ in range(5):
            turns.went_on(EVEN, 1.0)
        assert turns.by_age


def test_one_from_which_they_did_not_is_followed_by_no_third() -> None:
    turns = aging()
    for _ in range(2):
        assert turns.by_age
        turns.from_head(EVEN, 1_000, 0.9)
        for _ in range(4):
            turns.went_on(EVEN, 0.9)
    assert rests(turns) == 16


def test_what_has_little_gets_no_more_than_its_share_at_once() -> None:
    assert aging().quiet_rows(1_000) == 875


def test_what_was_seen_of_one_stretch_is_not_held_against_the_next() -> None:
    turns = aging()
    for _ in range(5):
        turns.went_on({0: 1_000}, 0.1)
    turns.from_head({0: 1}, 1_000, 0.1)
    turns.by_buckets(1_000, 1_000, 0.1, even=True)
    turns.went_on(EVEN, 0.1)
    assert turns.by_age
    assert not turns.quiet


def test_what_one_takes_is_compared_to_a_speed_that_is_not_long_ago() -> None:
    turns = aging()
    # The machine becomes slower little by little.
    for number in range(70):
        turns.from_head(EVEN, 1_000, 0.1 * 1.05**number)
        assert turns.by_age
