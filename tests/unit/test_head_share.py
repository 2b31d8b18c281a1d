"""How a lot is shared among a shard's buckets."""

import pytest

from thresher.relay.reading.pending_rows import Share


class Shard:
    """Buckets with so many rows each, asked in an order that begins behind the last one that gave."""

    def __init__(self, *waiting: int) -> None:
        self.share = Share(len(waiting))
        self.waiting = dict(enumerate(waiting))

    def lot(self, rows: int = 10_000) -> dict[int, int]:
        """Return what each bucket gives to the next lot."""
        each, left = self.share.of(rows), rows
        given = {}
        for bucket, count in self.waiting.items():
            given[bucket] = min(count, each, left)
            left -= given[bucket]
        order = list(given)
        asked = len(order)
        if not left:
            asked = max(place for place, bucket in enumerate(order) if given[bucket]) + 1
            self.waiting = {bucket: self.waiting[bucket] for bucket in order[asked:] + order[:asked]}
        self.share.learn(rows - left, rows, asked)
        return given


MANY = 1_000_000


def test_where_all_buckets_have_many_nearly_all_of_them_give() -> None:
    shard = Shard(*[MANY] * 32)
    for _ in range(10):
        given = shard.lot()
        assert sum(given.values()) == 10_000
        assert sum(count > 0 for count in given.values()) >= 25


@pytest.mark.parametrize("hot", [0, 7, 31])
def test_one_bucket_alone_soon_gives_whole_lots(hot: int) -> None:
    shard = Shard(*(MANY if bucket == hot else 0 for bucket in range(32)))
    assert [sum(shard.lot().values()) for _ in range(20)][-10:] == [10_000] * 10


def test_a_few_hot_buckets_fill_the_lots_between_them() -> None:
    shard = Shard(*(MANY if bucket in {3, 17, 30} else 0 for bucket in range(32)))
    assert min([sum(shard.lot().values()) for _ in range(40)][10:]) >= 7_500


def test_after_one_hot_bucket_the_others_are_asked_again() -> None:
    shard = Shard(MANY, *[0] * 31)
    for _ in range(10):
        shard.lot()
    shard.waiting = dict.fromkeys(shard.waiting, MANY)
    for _ in range(10):
        given = shard.lot()
    assert sum(count > 0 for count in given.values()) >= 24


@pytest.mark.parametrize("rows", [1, 10, 31])
def test_a_small_lot_asks_each_for_one_at_least(rows: int) -> None:
    assert Share(32).of(rows) >= 1


def test_a_bucket_is_never_asked_for_more_than_the_lot() -> None:
    shard = Shard(1, 0, 0, 0)
    for _ in range(20):
        shard.lot(100)
    assert shard.share.of(100) == 100
