"""The signals that reach an application with handlers of its own."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def hearing() -> Iterator[list[int]]:
    """Handle SIGTERM and SIGINT while the context lasts, and yield the list of signals that came."""
    heard: list[int] = []
    before = {
        kind: signal.signal(kind, lambda number, _: heard.append(number)) for kind in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield heard
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
