"""How events reach their handlers."""

import pytest

from thresher.service.events.announcer import Announcer
from thresher.service.events.event import Event, LeaderRevoked, MeterRead


def test_a_failing_handler_disturbs_no_other_handler(caplog: pytest.LogCaptureFixture) -> None:
    announcer = Announcer("events")
    told: list[Event] = []

    def failing(_event: Event) -> None:
        raise RuntimeError("the handler's own trouble")

    # The first handler fails; the next one is called nevertheless.
    announcer.add(failing)
    announcer.add(told.append)
    announcer.start()
    events: list[Event] = [
        LeaderRevoked(), MeterRead(relayed=1, rate=1.0, mean_rate=1.0, seconds=1.0), LeaderRevoked()
    ]  # fmt: skip
    for event in events:
        announcer.announce(event)
    announcer.close(60)
    assert told == events
    assert caplog.text.count("an event handler failed") == len(events)
