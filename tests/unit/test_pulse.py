"""Which signs of life count, and from when."""

import pytest

from thresher.election.pulse import Pulse, key_of


def test_both_signs_have_to_come_back_and_count_from_when_they_were_sent() -> None:
    pulse = Pulse("g", recorded=True, began=0.0)
    assert pulse.until(5.0) < 0
    key, first = pulse.beat(1.0)
    assert pulse.confirm(first)
    assert pulse.until(5.0) == 5.0  # the first record is waited for since the beginning
    assert pulse.hear(key, first.encode())
    assert pulse.until(5.0) == 6.0
    _, second = pulse.beat(3.0)
    pulse.confirm(second)
    assert pulse.until(5.0) == 6.0
    pulse.hear(key, second.encode())
    assert pulse.until(5.0) == 8.0


def test_signs_that_come_back_out_of_order_take_nothing_back() -> None:
    pulse = Pulse("g", recorded=False, began=0.0)
    _, first = pulse.beat(1.0)
    _, second = pulse.beat(2.0)
    pulse.confirm(second)
    pulse.confirm(first)
    assert pulse.until(5.0) == 7.0


def test_without_records_the_coordinators_word_is_enough() -> None:
    pulse = Pulse("g", recorded=False, began=0.0)
    pulse.confirm(pulse.beat(4.0)[1])
    assert pulse.until(5.0) == 9.0


def test_signs_of_another_view_do_not_count() -> None:
    mine, other = Pulse("g", recorded=True, began=0.0), Pulse("g", recorded=True, began=0.0)
    mine.beat(1.0)
    key, beat = other.beat(1.0)
    assert not mine.hear(key, beat.encode())
    assert not mine.confirm(beat)


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[1]", b"7", b"\xff", b'{"view": 1, "beat": {}}', b"null"])
def test_what_others_write_is_passed_over(value: bytes | None) -> None:
    pulse = Pulse("g", recorded=True, began=0.0)
    pulse.beat(1.0)
    assert not pulse.hear(key_of("g"), value)
    assert not pulse.hear(None, value)
    assert not pulse.hear(key_of("another"), value)
