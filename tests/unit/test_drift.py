"""Clock faults of a soak: the offset and the duration are those of the fault."""

import itertools
import time
from pathlib import Path

import pytest

from tests.faults import drift
from tests.faults.mix.agenda import Agenda
from tests.faults.mix.clock import Clock
from thresher.core.clock import ServerClock

NEAR_SECONDS = 60.0


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(drift.VARIABLE, str(tmp_path / "clock"))
    return tmp_path / "clock"


@pytest.mark.parametrize("offset", [offset for offset in drift.OFFSETS if offset != drift.JUMPING])
def test_a_process_that_follows_the_file_has_its_offset(
    file: Path, offset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in ((time, "time"), (time, "time_ns"), (ServerClock, "now_us")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    real, server = time.time, ServerClock(0.0, lambda: 0.0)
    drift.follow()
    assert abs(time.time() - real()) < NEAR_SECONDS
    drift.put_off(file, offset)
    assert abs(time.time() - real() - float(offset)) < NEAR_SECONDS
    assert abs(time.time_ns() / 1e9 - real() - float(offset)) < NEAR_SECONDS
    assert server.now_ms() == float(offset) * 1000
    drift.put_right(file)
    assert abs(time.time() - real()) < NEAR_SECONDS
    assert server.now_ms() == 0


def test_a_jumping_clock_never_repeats_its_offset(file: Path) -> None:
    drift.put_off(file, drift.JUMPING)
    told = [drift.offset_seconds() for _ in range(20)]
    assert all(one != other for one, other in itertools.pairwise(told))


def test_the_newer_fault_decides_when_the_clock_is_right(file: Path) -> None:
    agenda = Agenda(lambda _line: None)
    clock = Clock(file, agenda=agenda)
    clock.clock("3600", 1.0)
    clock.clock("-3600", 5.0)
    agenda.do_due(agenda.now + 2.0)
    assert drift.offset_seconds() == -3600
    agenda.do_due(agenda.now + 6.0)
    assert drift.offset_seconds() == 0
