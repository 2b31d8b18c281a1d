"""What the driver's loop owes to a driver that was paused."""

import selectors
import socket
from typing import Any

from thresher.spark.driver.event_loop import EventLoop


class Interrupted(selectors.DefaultSelector):
    """Waits as a process does that is stopped and continued: for nothing, whatever has arrived meanwhile."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout) if timeout == 0.0 else []


def test_messages_from_a_pause_are_read_before_timeouts(monkeypatch: Any) -> None:
    monkeypatch.setattr(selectors, "DefaultSelector", Interrupted)
    heard: list[bytes] = []
    looks: list[int] = []

    def on_time(now: float) -> float:
        looks.append(len(heard))
        if len(looks) == 2:
            near.send(b"beat")
        if len(looks) == 3:
            loop.finish()
        return now + 3600.0

    near, far = socket.socketpair()
    with near, far:
        loop = EventLoop("test", on_time, lambda _error: None)
        loop.watch(far, selectors.EVENT_READ, lambda _events: heard.append(far.recv(16)))
        loop.start()
        assert loop.join(60.0)
    assert looks == [0, 0, 1]
