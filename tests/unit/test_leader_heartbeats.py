"""Which heartbeats count, and from which time."""

import pytest

from thresher.election.leader_heartbeats import LeaderHeartbeats, key_of


def test_both_heartbeats_count_from_the_time_of_sending() -> None:
    heartbeats = LeaderHeartbeats("g", recorded=True, began=0.0)
    assert heartbeats.until(5.0) < 0
    key, first = heartbeats.beat(1.0)
    assert heartbeats.confirm(first)
    assert heartbeats.until(5.0) == 5.0  # The first record is awaited from the beginning.
    assert heartbeats.hear(key, first.encode())
    assert heartbeats.until(5.0) == 6.0
    _, second = heartbeats.beat(3.0)
    heartbeats.confirm(second)
    assert heartbeats.until(5.0) == 6.0
    heartbeats.hear(key, second.encode())
    assert heartbeats.until(5.0) == 8.0


def test_heartbeats_out_of_order_move_no_deadline_back() -> None:
    heartbeats = LeaderHeartbeats("g", recorded=False, began=0.0)
    _, first = heartbeats.beat(1.0)
    _, second = heartbeats.beat(2.0)
    heartbeats.confirm(second)
    heartbeats.confirm(first)
    assert heartbeats.until(5.0) == 7.0


def test_the_coordinators_heartbeat_is_enough_without_records() -> None:
    heartbeats = LeaderHeartbeats("g", recorded=False, began=0.0)
    heartbeats.confirm(heartbeats.beat(4.0)[1])
    assert heartbeats.until(5.0) == 9.0


def test_heartbeats_of_another_member_do_not_count() -> None:
    mine, other = LeaderHeartbeats("g", recorded=True, began=0.0), LeaderHeartbeats("g", recorded=True, began=0.0)
    mine.beat(1.0)
    key, beat = other.beat(1.0)
    assert not mine.hear(key, beat.encode())
    assert not mine.confirm(beat)


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"[1]", b"7", b"\xff", b'{"view": 1, "beat": {}}', b"null", b"[" * 100_000]
)
def test_foreign_records_are_skipped(value: bytes | None) -> None:
    heartbeats = LeaderHeartbeats("g", recorded=True, began=0.0)
    heartbeats.beat(1.0)
    assert not heartbeats.hear(key_of("g"), value)
    assert not heartbeats.hear(None, value)
    assert not heartbeats.hear(key_of("another"), value)
