"""Runs blocking calls for coroutines, each in a thread of its own.

No call waits for another call, or for the application's work in the loop's thread pool. A call runs to its end, even if
the coroutine that waits for it is cancelled.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


def begin(call: Callable[[], _T], *, outlives_loop: bool = False) -> Future[_T]:
    """Run a call in a thread. With `outlives_loop`, the interpreter waits for the call at exit."""
    made: Future[_T] = Future()
    # A running future cannot be cancelled.
    made.set_running_or_notify_cancel()

    def make() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - the waiting coroutine raises it
            made.set_exception(error)
        else:
            made.set_result(result)

    threading.Thread(target=make, name="thresher-queue-aio", daemon=not outlives_loop).start()
    return made


async def result_of(made: Future[_T]) -> _T:
    """Wait for a call, and return its result.

    If this wait is cancelled, the call continues, and its error is logged.
    """
    try:
        return await asyncio.wrap_future(made)
    except asyncio.CancelledError:
        made.add_done_callback(_log_error)
        raise


async def in_thread(call: Callable[[], _T]) -> _T:
    """Run a call in a thread, and return its result."""
    return await result_of(begin(call))


def _log_error(made: Future[_T]) -> None:
    if (error := made.exception()) is not None:
        logger.warning("a call failed that nobody waits for", exc_info=error)
