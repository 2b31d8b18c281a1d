"""When reads by age go on where the last one ended."""

from thresher.relay.reading.trail import LOWEST, Trail


def begun(trail: Trail, horizon: str | None = "7", generation: int = 1, now: float = 0.0) -> Trail:
    """Have it take in a read from the head that gave all it wanted."""
    trail.begin(horizon, generation)
    trail.began(100, now)
    return trail


def test_they_go_on_behind_the_last_row_with_what_was_known_at_the_head() -> None:
    trail = Trail()
    assert trail.horizon(1, 1.0) is None
    begun(trail)
    assert (trail.horizon(1, 1.0), trail.last) == ("7", 100)
    trail.went(200)
    assert (trail.horizon(1, 1.0), trail.last) == ("7", 200)


def test_they_do_not_while_the_first_has_not_given_anything() -> None:
    trail = begun(Trail())
    trail.begin("8", 1)
    assert (trail.horizon(1, 1.0), trail.last) == (None, LOWEST)


def test_they_do_not_when_rows_have_gone_back() -> None:
    trail = begun(Trail())
    assert trail.horizon(2, 1.0) is None


def test_they_do_not_where_something_was_left_out() -> None:
    assert begun(Trail(), horizon=None).horizon(1, 1.0) is None


def test_they_do_not_for_long() -> None:
    trail = begun(Trail())
    assert trail.horizon(1, 9.0) == "7"
    assert trail.horizon(1, 10.0) is None


def test_they_end_with_what_is_not_old_enough() -> None:
    trail = begun(Trail())
    trail.end(futile=False)
    assert trail.horizon(1, 1.0) is None
    assert begun(trail).horizon(1, 1.0) == "7"


def rests(trail: Trail) -> int:
    """Return how many begin at the head until one may go on, which gives nothing."""
    count = 0
    while begun(trail).horizon(1, 1.0) is None:
        count += 1
    trail.end(futile=True)
    return count


def test_in_vain_they_are_tried_less_and_less_often() -> None:
    trail = Trail()
    assert [rests(trail) for _ in range(9)] == [0, 15, 31, 63, 127, 255, 511, 1_023, 1_023]
    # One that gave something makes good again.
    while begun(trail).horizon(1, 1.0) is None:
        pass
    trail.went(200)
    trail.end(futile=True)
    assert rests(trail) == 15


def test_what_was_in_vain_is_forgotten_with_the_backlog() -> None:
    trail = Trail()
    assert [rests(trail) for _ in range(3)] == [0, 15, 31]
    trail.leave()
    assert [rests(trail) for _ in range(2)] == [0, 15]
