"""Messages are started ahead for about a second of the application's work, up to the buffer's capacity."""

import pytest

from thresher.queue.hand_off.prefetch_size import PrefetchSize


def fill(prefetch_size: PrefetchSize, now: float) -> int:
    """Start as many messages as fit into an empty buffer, and return how many."""
    room = prefetch_size.room(0, now)
    prefetch_size.handed(room, now)
    return room


def test_a_new_consumer_starts_few_messages() -> None:
    assert PrefetchSize(500).room(0, 0.0) == 8


@pytest.mark.parametrize("capacity", [1, 2, 7])
def test_no_more_are_started_than_the_buffer_holds(capacity: int) -> None:
    prefetch_size = PrefetchSize(capacity)
    for now in range(10):
        assert fill(prefetch_size, now * 0.01) <= capacity


def test_none_are_started_while_half_is_left() -> None:
    prefetch_size = PrefetchSize(500)
    prefetch_size.handed(8, 0.0)
    assert prefetch_size.room(5, 0.1) == 0
    assert prefetch_size.room(4, 0.1) > 0


def test_a_quick_application_gets_the_whole_buffer_soon() -> None:
    prefetch_size = PrefetchSize(500)
    assert [fill(prefetch_size, now * 0.1) for now in range(5)] == [8, 32, 128, 500, 500]


def test_a_slow_application_gets_a_seconds_worth() -> None:
    prefetch_size = PrefetchSize(500)
    for now in range(4):
        fill(prefetch_size, now * 0.1)
    # 500 messages in 50 seconds.
    assert fill(prefetch_size, 50.3) == 10


def test_a_very_slow_application_gets_one_at_a_time() -> None:
    prefetch_size = PrefetchSize(500)
    fill(prefetch_size, 0.0)
    assert fill(prefetch_size, 3_600.0) == 1
    assert fill(prefetch_size, 7_200.0) == 1, "and never 0"


def test_an_application_that_becomes_quick_gets_more_again() -> None:
    prefetch_size = PrefetchSize(500)
    fill(prefetch_size, 0.0)
    assert fill(prefetch_size, 100.0) == 1
    assert [fill(prefetch_size, 100.0 + now * 0.1) for now in range(1, 4)] == [4, 16, 64]


def test_a_pace_of_about_a_second_stays() -> None:
    prefetch_size = PrefetchSize(500)
    assert [fill(prefetch_size, now * 0.8) for now in range(5)] == [8] * 5


def test_an_empty_queue_teaches_nothing() -> None:
    prefetch_size = PrefetchSize(500)
    prefetch_size.room(0, 0.0)
    # One message came although there was room for eight: its hour does not measure the application.
    prefetch_size.handed(1, 0.0)
    assert prefetch_size.room(0, 3_600.0) == 8


def test_messages_that_are_left_take_room() -> None:
    prefetch_size = PrefetchSize(500)
    prefetch_size.handed(8, 0.0)
    assert prefetch_size.room(4, 0.8) == 4
