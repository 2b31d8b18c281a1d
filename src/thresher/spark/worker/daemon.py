"""The parent of local workers, in place of PySpark's own: has imported what they will need before it forks them.

A worker imports for most of a second before it can begin, and a leader that takes over waits for that. What starts a
thread must not be imported before a fork: if anything did, PySpark's own parent takes the place, and nothing is gained.
"""

import contextlib
import importlib
import os
import sys
from pathlib import Path

from thresher.spark.session.settings import PRELOAD


def main() -> None:
    """Import, and be what PySpark's daemon is."""
    # Arrow's allocator would start a thread to tidy up in; without it, whoever allocates tidies up.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    for name in ("pyspark.worker", "thresher.spark.worker.task", *os.environ.get(PRELOAD, "").split()):
        # Whoever needs it will say what is wrong with it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])  # noqa: S606
    from pyspark.daemon import manager  # noqa: PLC0415

    manager()


if __name__ == "__main__":
    main()
