"""Durations in Go's format, as in goharvest's files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thresher.config.duration import seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5s", 5.0),
        ("100ms", 0.1),
        ("1m30s", 90.0),
        ("1h2m3.5s", 3723.5),
        ("250us", 0.000_25),
        ("250µs", 0.000_25),
        ("250μs", 0.000_25),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("5.s", 5.0),
        ("+5s", 5.0),
        ("0", 0.0),
        ("0s", 0.0),
        (1_500_000_000, 1.5),
    ],
)
def test_durations_that_go_accepts_are_accepted(text: str | int, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "5 s", "s", "5x", "5s ", "1s-1ms", "\u0665s", ".s", "-5s", -1, 1.5, True, None, []]
)
def test_durations_that_go_refuses_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is needed"):
        seconds_of(text)


def test_durations_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="292 years"):
        seconds_of("2562048h")


@given(st.integers(0, 10_000), st.integers(0, 59), st.integers(0, 59), st.integers(0, 999))
def test_parts_add_up(hours: int, minutes: int, seconds: int, milliseconds: int) -> None:
    whole = hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    assert seconds_of(f"{hours}h{minutes}m{seconds}s{milliseconds}ms") == pytest.approx(whole, rel=1e-12)
