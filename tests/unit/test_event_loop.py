"""The driver's event loop after a pause of its process."""

import selectors
import socket
from typing import Any

from thresher.spark.driver.event_loop import EventLoop


class Interrupted(selectors.DefaultSelector):
    """A selector as after SIGSTOP and SIGCONT: a wait returns no events, although messages have arrived."""

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
