"""The worker daemon for local workers, in place of PySpark's: it imports their modules once, before it forks them.

Imports take most of a second of a worker's start, and a take-over would wait for them. A process with threads must not
fork: if an import has started a thread, PySpark's own daemon replaces this one, and workers import by themselves.
"""

import contextlib
import importlib
import os
import sys
from pathlib import Path

from thresher.spark.session.settings import PRELOAD


def main() -> None:
    """Import the modules, then run PySpark's daemon."""
    # Arrow's allocator would start a background thread; without it, allocating threads free unused memory.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    for name in ("pyspark.worker", "thresher.spark.worker.task", *os.environ.get(PRELOAD, "").split()):
        # The worker that needs the module reports the error.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])  # noqa: S606
    from pyspark.daemon import manager  # noqa: PLC0415

    manager()


if __name__ == "__main__":
    main()
