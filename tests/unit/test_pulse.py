"""Which heartbeats count, and from which time."""

import pytest

from thresher.election.pulse import Pulse, key_of


def test_both_heartbeats_count_from_the_time_of_sending() -> None:
    pulse = Pulse("g", recorded=True, began=0.0)
    assert pulse.until(5.0) < 0
    key, first = pulse.beat(1.0)
    assert pulse.confirm(first)
    assert pulse.until(5.0) == 5.0  # The first record is awaited from the beginning.
    assert pulse.hear(key, first.encode())
    assert pulse.until(5.0) == 6.0
    _, second = pulse.beat(3.0)
    pulse.confirm(second)
    assert pulse.until(5.0) == 6.0
    pulse.hear(key, second.encode())
    assert pulse.until(5.0) == 8.0


def test_heartbeats_out_of_order_move_no_deadline_back() -> None:
    pulse = Pulse("g", recorded=False, began=0.0)
    _, first = pulse.beat(1.0)
    _, second = pulse.beat(2.0)
    pulse.confirm(second)
    pulse.confirm(first)
    assert pulse.until(5.0) == 7.0


def test_the_coordinators_heartbeat_is_enough_without_records() -> None:
    pulse = Pulse("g", recorded=False, began=0.0)
    pulse.confirm(pulse.beat(4.0)[1])
    assert pulse.until(5.0) == 9.0


def test_heartbeats_of_another_member_do_not_count() -> None:
    mine, other = Pulse("g", recorded=True, began=0.0), Pulse("g", recorded=True, began=0.0)
    mine.beat(1.0)
    key, beat = other.beat(1.0)
    assert not mine.hear(key, beat.encode())
    assert not mine.confirm(beat)


@pytest.mark.parametrize("value", [None, b"", b"{}", b"[1]", b"7", b"\xff", b'{"view": 1, "beat": {}}', b"null"])
def test_foreign_records_are_skipped(value: bytes | None) -> None:
    pulse = Pulse("g", recorded=True, began=0.0)
    pulse.beat(1.0)
    assert not pulse.hear(key_of("g"), value)
    assert not pulse.hear(None, value)
    assert not pulse.hear(key_of("another"), value)
