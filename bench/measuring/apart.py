"""Runs a function in another process, with a pipe to it."""

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_CONTEXT = multiprocessing.get_context("spawn")
Line = Any


@contextmanager
def running(target: Callable[..., None], *arguments: Any) -> Iterator[Line]:
    """Run a function in another process while the context lasts, once it is ready. It ends when its pipe closes."""
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
