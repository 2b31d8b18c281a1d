"""The process's logging, which each test leaves as it found it: the tests of one process run in any order.

A command that a test runs in its own process may set the package's level to WARNING, and a later test that looks for
a line of level INFO would not find it.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

_NAMES = (None, "thresher")


@contextmanager
def logging_kept() -> Iterator[None]:
    """Restore, after the block, the levels and handlers of the root's and the package's logger."""
    restores, shown = [_state(logging.getLogger(name)) for name in _NAMES], warnings.showwarning
    try:
        yield
    finally:
        # Forgets the function for warnings that it replaced: that one may be of a test that is long over.
        logging.captureWarnings(False)
        warnings.showwarning = shown
        for restore in restores:
            restore()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Iterator[None]:
    """Run a test and its fixtures, those of its module included, within the block."""
    with logging_kept():
        return (yield)


def _state(logger: logging.Logger) -> Callable[[], None]:
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)

    def restore() -> None:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers

    return restore
