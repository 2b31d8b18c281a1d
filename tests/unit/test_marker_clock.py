"""The tracker's clock: the broker's timestamps, and monotonic time only where nothing can have been missed."""

from thresher.tracker.protocol.clock import SILENT_SECONDS, SLACK_MS, MarkerClock

HOUR_MS = 3_600_000


def anchored(timestamp_ms: int = 1_000_000, at: float = 50.0, **options: float) -> MarkerClock:
    """A clock whose partition was read to its end."""
    clock = MarkerClock(**options)
    clock.marker(timestamp_ms, at)
    clock.answered(at, at_end=True)
    return clock


def test_before_the_end_is_reached_timestamps_alone_count() -> None:
    clock = MarkerClock()
    assert clock.now_ms == 0
    assert clock.marker(1_000_000, 50.0) == 1_000_000
    clock.answered(51.0, at_end=False)
    clock.answered(52.0, at_end=False)
    assert (clock.now_ms, clock.anchored) == (1_000_000, False)
    assert clock.marker(1_000_000 + HOUR_MS, 52.0) == 1_000_000 + HOUR_MS, "history is read faster than it passed"


def test_at_the_end_monotonic_time_counts_up_to_the_question() -> None:
    clock = anchored()
    clock.answered(50.5, at_end=True)
    assert clock.now_ms == 1_000_500
    clock.answered(51.0, at_end=True)
    assert clock.now_ms == 1_001_000


def test_a_marker_that_was_not_read_yet_stops_the_clock() -> None:
    clock = anchored()
    clock.answered(51.0, at_end=False)
    clock.answered(52.0, at_end=False)
    assert clock.now_ms == 1_000_000
    clock.answered(52.5, at_end=True)
    assert clock.now_ms == 1_000_500, "what passed before the last answer is not made up for"
    assert clock.resumed_ms == 1_000_000, "an open hand-off is no silence"


def test_a_silent_broker_stops_the_clock_and_grants_a_grace() -> None:
    clock = anchored()
    clock.answered(50.5, at_end=True)
    clock.answered(50.5 + SILENT_SECONDS + 100, at_end=True)
    assert clock.now_ms == 1_000_500
    assert clock.resumed_ms == 1_000_500
    clock.answered(50.5 + SILENT_SECONDS + 101, at_end=True)
    assert clock.now_ms == 1_001_500


def test_no_time_is_counted_twice() -> None:
    clock = anchored()
    clock.marker(1_000_400, 50.4)
    clock.answered(50.5, at_end=True)
    assert clock.now_ms == 1_000_500
    clock.marker(1_000_450, 50.6)
    assert clock.now_ms == 1_000_500


def test_it_never_goes_back_and_goes_on_from_where_it_is() -> None:
    clock = anchored()
    assert clock.marker(1_000_000 - HOUR_MS, 50.1) == 1_000_000
    assert clock.marker(1_000_000 - HOUR_MS + 1_000, 51.1) == 1_001_000


def test_a_jump_forward_is_capped_in_all() -> None:
    clock = anchored()
    assert clock.marker(1_000_000 + HOUR_MS, 50.1) == 1_000_100 + SLACK_MS
    assert clock.marker(1_000_100 + HOUR_MS, 50.2) == 1_000_200 + SLACK_MS
    for number in range(2, 50):
        clock.marker(1_000_000 + number * HOUR_MS, 50.2)
    assert clock.now_ms == 1_000_200 + SLACK_MS, "jumps do not add up"


def test_a_jump_back_after_a_jump_forward_costs_nothing() -> None:
    clock = anchored()
    clock.marker(1_000_000 + HOUR_MS, 50.1)
    clock.marker(1_000_200, 50.2)
    assert clock.marker(1_001_200, 51.2) == 1_001_200 + SLACK_MS - 100


def test_the_grace_after_a_start_begins_where_the_end_was_reached() -> None:
    clock = MarkerClock()
    clock.marker(1_000_000, 50.0)
    clock.marker(1_000_000 + HOUR_MS, 50.0)
    clock.answered(50.0, at_end=True)
    assert clock.resumed_ms == 1_000_000 + HOUR_MS


def test_an_empty_partition_has_no_time() -> None:
    clock = MarkerClock()
    clock.answered(50.0, at_end=True)
    clock.answered(51.0, at_end=True)
    assert (clock.now_ms, clock.anchored) == (0, False)


def test_monotonic_time_may_be_told_to_wait_for_markers() -> None:
    clock = anchored(use_now_after_seconds=2.0)
    clock.answered(51.0, at_end=True)
    clock.answered(52.0, at_end=True)
    assert clock.now_ms == 1_000_000
    clock.answered(53.0, at_end=True)
    assert clock.now_ms == 1_001_000


def test_small_steps_add_up() -> None:
    clock = anchored()
    for step in range(1, 1_001):
        clock.answered(50.0 + step * 0.0333, at_end=True)
    assert abs(clock.now_ms - 1_033_300) <= 1
