"""Calls that may hang in a client: made in a thread of their own, which is left behind when nobody waits any more."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.1


class LeftBehind(Exception):  # noqa: N818 - an ordinary end
    """The call was not waited for. It may still do what it does."""


def answer_of(call: Callable[[], T], *, unless: threading.Event, name: str) -> T:
    """Make the call, and return or raise what it does. Raises `LeftBehind` as soon as the event is set.

    The thread has the name.
    """
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised again below
            outcome.put((None, error))

    threading.Thread(target=run, name=name, daemon=True).start()
    while not unless.is_set():
        with contextlib.suppress(queue.Empty):
            answer, error = outcome.get(timeout=_LOOK_SECONDS)
            if error is not None:
                raise error
            return answer  # type: ignore[return-value]
    raise LeftBehind
