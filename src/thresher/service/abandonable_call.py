"""Calls that may hang in a client. Each runs in a thread of its own, which is abandoned once its caller has to stop."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.1


class CallAbandoned(Exception):  # noqa: N818 - an ordinary end
    """The caller stopped waiting. The call may still take effect."""


def answer_of(call: Callable[[], T], *, unless: threading.Event, name: str) -> T:
    """Make the call in a thread of this name, and return its result or raise its error.

    Raises `CallAbandoned` as soon as the event `unless` is set.
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
    raise CallAbandoned
