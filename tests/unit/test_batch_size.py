"""The size of the next batch, by the duration of the last."""

import pytest

from thresher.delivery.reading.batch_size import BatchSize


def sized(most_rows: int = 4_000) -> BatchSize:
    return BatchSize(most_rows=most_rows, most_bytes=16_000_000)


@pytest.mark.parametrize(("seconds", "sizes"), [(0.3, [2_000, 4_000, 4_000]), (0.1, [4_000, 4_000])])
def test_a_quick_and_full_batch_makes_the_next_larger(seconds: float, sizes: list[int]) -> None:
    size = sized()
    for rows in sizes:
        size.learn(size.rows, seconds, 1.0)
        assert size.rows == rows
    assert size.bytes == min(16_000_000, 1_000_000 * (2 if seconds > 0.125 else 4) ** len(sizes))


def test_a_slow_batch_halves_the_next_down_to_the_least() -> None:
    size = sized()
    size.learn(1_000, 1.1, 1.0)
    assert size.rows == 500
    size.learn(100, 1.1, 1.0)
    assert size.rows == 50, "half of the slow batch"
    for _ in range(9):
        size.learn(size.rows, 1.1, 1.0)
    assert size.rows == 10
    assert size.bytes == 100_000


@pytest.mark.parametrize(("rows", "seconds"), [(749, 0.1), (1_000, 0.6), (1_000, 1.0)])
def test_a_batch_neither_slow_nor_quick_and_full_changes_nothing(rows: int, seconds: float) -> None:
    size = sized()
    size.learn(rows, seconds, 1.0)
    assert size.rows == 1_000


def test_batches_grow_although_windows_are_not_quite_full() -> None:
    size = sized()
    size.learn(950, 0.1, 1.0)
    assert size.rows == 4_000


def test_a_batch_never_exceeds_the_most() -> None:
    size = sized(most_rows=5)
    size.learn(5, 1.1, 1.0)
    assert size.rows <= 5
