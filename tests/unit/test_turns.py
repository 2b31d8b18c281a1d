"""Which reads of a head go by age."""

from thresher.relay.head import Turns


def test_by_age_only_after_all_buckets_were_seen_to_have_many_and_not_for_long() -> None:
    turns = Turns(allowed=True)
    went = []
    for _ in range(9):
        went.append(turns.by_age)
        turns.learn(1_000, 1_000, 32, 32)
    assert went == [False, True, True, True, False, True, True, True, False]


def test_one_bucket_with_much_is_no_reason() -> None:
    turns = Turns(allowed=True)
    turns.learn(1_000, 1_000, 3, 32)
    assert not turns.by_age


def test_what_is_short_ends_it() -> None:
    turns = Turns(allowed=True)
    turns.learn(1_000, 1_000, 32, 32)
    turns.learn(999, 1_000, 0, 32)
    assert not turns.by_age


def test_never_where_it_is_not_allowed() -> None:
    turns = Turns(allowed=False)
    turns.learn(1_000, 1_000, 32, 32)
    assert not turns.by_age
