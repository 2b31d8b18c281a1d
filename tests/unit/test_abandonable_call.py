"""A hanging call delays no caller, and a leadership can be ended in every state."""

import threading
from typing import Any

import pytest

from tests.unit.test_relay_end import SETTINGS, Stuck, Term
from thresher.core.errors import Superseded
from thresher.relay.leader.workload import RelayTerm, RelayWorkload
from thresher.service import leading
from thresher.service.abandonable_call import CallAbandoned, answer_of
from thresher.service.leading import Leading
from thresher.spark.driver.snapshot import Snapshot


def test_a_call_that_returns_or_raises_does_so() -> None:
    never = threading.Event()
    assert answer_of(lambda: 7, unless=never, name="call") == 7

    def refuse() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        answer_of(refuse, unless=never, name="call")


def test_a_call_that_hangs_is_left_behind() -> None:
    asked, hanging = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        threading.Event().wait()

    def ask() -> None:
        hanging.wait(60)
        asked.set()

    threading.Thread(target=ask, daemon=True).start()
    with pytest.raises(CallAbandoned):
        answer_of(hang, unless=asked, name="call")


class Stopped(Stuck):
    """An engine that stops on request."""

    def wait(self) -> Snapshot:
        assert self._asked.wait(60)
        return self.snapshot()

    def kill(self) -> None:
        self._asked.set()


@pytest.mark.parametrize("end", [Leading.request_stop, Leading.kill, Leading.abandon])
def test_a_superseded_leadership_ends_despite_a_hanging_database(end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    class Hanging(Term):
        def taken_back(self) -> bool:
            asked.set()
            threading.Event().wait()
            raise AssertionError

    def look() -> None:
        raise Superseded("a newer relay has taken over")

    class Workload(RelayWorkload):
        def take_over(self, *_: Any) -> RelayTerm:
            return Hanging(look)

    monkeypatch.setattr(leading, "Engine", Stopped)
    led = Leading(Workload(SETTINGS), watch_seconds=0.01)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            led.run()
        except Superseded as error:
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert asked.wait(60)
    end(led)
    thread.join(60)
    assert [type(error) for error in ended] == [Superseded]
