"""The cool-down of a process after a failed leadership."""

from thresher.service.cool_down import CoolDown


def test_each_cool_down_doubles_up_to_a_minute() -> None:
    cool_down, now, lengths = CoolDown(), 100.0, []
    assert cool_down.over(now)
    for _ in range(8):
        cool_down = cool_down.failed(lasted=1.0, now=now)
        lengths.append(cool_down.until - now)
        assert not cool_down.over(cool_down.until - 0.1)
        now = cool_down.until
        assert cool_down.over(now)
    assert lengths == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_a_leadership_that_lasted_resets_the_cool_down() -> None:
    cool_down = CoolDown()
    for _ in range(5):
        cool_down = cool_down.failed(lasted=1.0, now=0.0)
    assert cool_down.failed(lasted=60.1, now=0.0).until == 1.0
