"""A server's clock on this machine."""

import time

import pytest

from thresher.core.clock import ServerClock


def test_a_server_clock_continues_from_the_servers_time() -> None:
    passed = iter([100.0, 100.0, 107.5])
    clock = ServerClock(1_000.0, lambda: next(passed))
    assert clock.now_ms() == 1_000_000
    assert clock.now_ms() == 1_007_500


def test_a_jump_of_the_local_clock_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ServerClock(1_000.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert 1_000_000 <= clock.now_ms() < 1_060_000
