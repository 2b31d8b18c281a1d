"""The workers' parent imports the named modules. If an import starts a thread, PySpark's own daemon replaces it."""

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


def test_the_workers_parent_preloads_modules_with_one_thread() -> None:
    from thresher.relay.leader.workload import PRELOAD

    done = parent(" ".join(PRELOAD))
    assert (done.stdout, done.stderr) == ("managed True 1\n", "")


def test_a_parent_with_several_threads_uses_pysparks_own_daemon(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    done = parent("threaded", PYTHONPATH=str(tmp_path))
    assert done.stdout == ""
    assert "made way: ['-m', 'pyspark.daemon', 'pyspark.worker']" in done.stderr


def test_an_import_error_is_left_to_the_worker() -> None:
    assert parent("there.is.no.such.module").stdout == "managed False 1\n"
