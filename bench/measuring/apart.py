"""Runs a function in a process of its own, with a line to it."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_CONTEXT = multiprocessing.get_context("spawn")
Line = Any


@contextmanager
def running(target: Callable[..., None], *arguments: Any) -> Iterator[Line]:
    """Run a function meanwhile, once it says that it is ready; it ends when its line is closed."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
        yield ours
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()
