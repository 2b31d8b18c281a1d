"""The most memory that a function needs, measured in a process of its own."""

import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def peak_mb(function: Callable[..., object], *given: Any) -> int:
    """Call a module's function in a new process, and return the most resident memory of that process.

    An error of the function is raised here.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_peak_of, function, given).result(300)


def _peak_of(function: Callable[..., object], given: tuple[Any, ...]) -> int:
    function(*given)
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) >> 10
