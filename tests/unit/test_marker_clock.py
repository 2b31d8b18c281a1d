"""The tracker's clock: the broker's timestamps, and monotonic time only when every marker up to it was read."""

from thresher.tracker.protocol.clock import SILENT_SECONDS, SLACK_MS, MarkerClock

HOUR_MS = 3_600_000


def anchored(timestamp_ms: int = 1_000_000, at: float = 50.0, **options: float) -> MarkerClock:
    """Return a clock whose first mark was read."""
    clock = MarkerClock(**options)
    clock.heard(at)
    clock.marker(timestamp_ms, at)
    clock.resume()
    clock.caught_up(at)
    return clock


def answer(clock: MarkerClock, *asked_at: float) -> None:
    """Let the broker answer the requests of these times, with all markers read."""
    for each in asked_at:
        clock.heard(each)
        clock.caught_up(each)


def test_only_timestamps_count_before_the_first_mark() -> None:
    clock = MarkerClock()
    assert clock.now_ms == 0
    assert clock.marker(1_000_000, 50.0) == 1_000_000
    answer(clock, 51.0, 52.0)
    assert (clock.now_ms, clock.resumed_ms) == (1_000_000, None)
    assert clock.marker(1_000_000 + HOUR_MS, 52.0) == 1_000_000 + HOUR_MS, "history is read faster than it passed"


def test_monotonic_time_counts_up_to_the_last_answered_question() -> None:
    clock = anchored()
    answer(clock, 50.5)
    assert clock.now_ms == 1_000_500
    answer(clock, 51.0)
    assert clock.now_ms == 1_001_000


def test_unread_markers_stop_the_clock() -> None:
    clock = anchored()
    for asked_at in (51.0, 52.0, 53.0):
        clock.heard(asked_at)
    assert clock.now_ms == 1_000_000
    clock.caught_up(52.0)
    assert clock.now_ms == 1_002_000, "up to the question whose answer was read, and no further"
    assert clock.resumed_ms == 1_000_000, "an open hand-off is no silence"


def test_a_silent_broker_stops_the_clock_until_a_mark() -> None:
    clock = anchored()
    answer(clock, 50.5)
    back = 50.5 + SILENT_SECONDS + 100
    answer(clock, back)
    assert (clock.now_ms, clock.resumed_ms) == (1_000_500, None)
    clock.marker(1_000_500 + 103_000, back + 0.1)
    assert clock.resumed_ms is None, "another queue's marker does not count"
    clock.marker(1_000_500 + 103_100, back + 0.2)
    clock.resume()
    assert clock.resumed_ms == clock.now_ms == 1_000_500 + 103_100, "from the mark on, not from before the silence"


def test_no_time_is_counted_twice() -> None:
    clock = anchored()
    clock.marker(1_000_400, 50.4)
    answer(clock, 50.5)
    assert clock.now_ms == 1_000_500
    clock.marker(1_000_450, 50.6)
    assert clock.now_ms == 1_000_500
    clock.caught_up(50.2)
    assert clock.now_ms == 1_000_500, "an older question"


def test_the_clock_never_goes_back() -> None:
    clock = anchored()
    assert clock.marker(1_000_000 - HOUR_MS, 50.1) == 1_000_000
    assert clock.marker(1_000_000 - HOUR_MS + 1_000, 51.1) == 1_001_000


def test_jumps_forward_are_capped_in_total() -> None:
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


def test_the_grace_after_a_start_begins_with_the_first_mark() -> None:
    clock = MarkerClock()
    clock.marker(1_000_000, 50.0)
    clock.marker(1_000_000 + HOUR_MS, 50.0)
    clock.resume()
    assert clock.resumed_ms == 1_000_000 + HOUR_MS


def test_monotonic_time_can_be_delayed_by_configuration() -> None:
    clock = anchored(use_now_after_seconds=2.0)
    answer(clock, 51.0, 52.0)
    assert clock.now_ms == 1_000_000
    answer(clock, 53.0)
    assert clock.now_ms == 1_001_000


def test_small_steps_add_up() -> None:
    clock = anchored()
    answer(clock, *(50.0 + step * 0.0333 for step in range(1, 1_001)))
    assert abs(clock.now_ms - 1_033_300) <= 1


def test_time_before_a_backward_timestamp_is_not_counted_later() -> None:
    clock = anchored()
    answer(clock, 50.5)
    began = clock.marker(1_000_000 - HOUR_MS, 52.0)
    answer(clock, 52.0, 53.0)
    assert clock.now_ms - began == 1_000, "the time before the backward timestamp does not count"
    clock.marker(1_000_000 + HOUR_MS, 53.0)
    assert clock.now_ms - began <= 1_000 + SLACK_MS, "nor does a jump forward"
