"""The workers' parent: has imported what was named, and makes way for PySpark's own where that has started a thread."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
import pyspark.daemon

def manager():
    print("managed", "thresher.relay.shard.steps" in sys.modules, len(os.listdir("/proc/self/task")))

pyspark.daemon.manager = manager
os.execv = lambda program, arguments: sys.exit(f"made way: {arguments[1:]}")
from thresher.spark.worker.daemon import main
main()
"""


def parent(preload: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "pyspark.worker"], capture_output=True, text=True, timeout=150, check=False,
        env={**os.environ, "THRESHER_PRELOAD": preload, **variables},
    )  # fmt: skip


def test_the_parent_of_a_relays_workers_has_imported_all_of_it_and_has_one_thread() -> None:
    from thresher.relay.leader.workload import PRELOAD

    done = parent(" ".join(PRELOAD))
    assert (done.stdout, done.stderr) == ("managed True 1\n", "")


def test_a_parent_that_is_not_alone_any_more_makes_way(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    done = parent("threaded", PYTHONPATH=str(tmp_path))
    assert done.stdout == ""
    assert "made way: ['-m', 'pyspark.daemon', 'pyspark.worker']" in done.stderr


def test_what_cannot_be_imported_is_left_to_whoever_needs_it() -> None:
    assert parent("there.is.no.such.module").stdout == "managed False 1\n"
