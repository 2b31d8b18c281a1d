"""When a random soak reports a standstill."""

import functools

import pytest

from tests.faults.mix.movement import Look, Movement


def _seen(look: Look) -> Look:
    return look


@pytest.mark.parametrize(
    ("looks", "longest"),
    [
        ([], 0.0),
        # Rows wait from the beginning, and progress is seen at 6.
        ([(2, Look(5, False)), (6, Look(4, True)), (8, Look(3, True))], 6.0),
        # Without waiting rows there is no standstill.
        ([(2, Look(0, False)), (50, Look(0, False)), (52, Look(1, True))], 2.0),
        # The last standstill has not ended.
        ([(2, Look(5, True)), (9, Look(5, False)), (12, Look(5, False))], 10.0),
    ],
)
def test_the_longest_time_without_movement_is_known(looks: list[tuple[float, Look]], longest: float) -> None:
    with Movement() as movement:
        for now, look in looks:
            movement.look(now, functools.partial(_seen, look))
            assert movement.looking is not None
            movement.looking.result()
            # The next call processes the result.
            movement.look(now, lambda: None)
        assert movement.longest == longest
