"""The back-off of a message whose handler failed."""

from thresher.queue.running import back_off


def test_the_back_off_doubles_to_a_bound() -> None:
    assert [back_off(count) for count in range(1, 6)] == [1, 2, 4, 8, 16]
    assert [back_off(count) for count in (9, 10, 100, 1_000_000)] == [256, 300, 300, 300]
