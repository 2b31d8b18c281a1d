"""A hook for workers at crash points: a worker stops at the ordered point, and reports after recovery.

A directory holds the orders. Its path is in the environment; workers on the run's own Spark have none of their own, and
find it in the run's temporary directory. There, `variables` has what a program would have in its environment.
`order-<shard>` names the crash point. A worker that reaches it writes `arrived-<shard>`, with its process and the rows
in flight, and waits until it is killed or `go-<shard>` exists. `hit-<shard>` names the rows in flight at the last kill.
After recovery, the worker notes in `recovered` how many of them are left.
"""

import importlib
import json
import os
import tempfile
import time
from pathlib import Path

from thresher.delivery.crash_points import CrashPoint

HOOK = f"{__name__}:reached"
_ORDERS, _LEFT = "THRESHER_TEST_ORDERS", "THRESHER_TEST_LEFT"
# Not a crash point of the code: the commit is sent and its answer is not read yet, which only the proxy can see.
COMMIT_SENT = "commit-sent"


def variables(orders: Path, left: str = "") -> dict[str, str]:
    """Return the environment of a program with this hook; `left` is the import path of a function that counts rows."""
    return {_ORDERS: str(orders), _LEFT: left}


def of_the_run() -> Path:
    """Return the directory of the orders to workers on the run's Spark."""
    return Path(tempfile.gettempdir()) / "thresher-orders"


def reached(point: CrashPoint, shard: int, rows: list[int]) -> None:
    where = Path(os.environ[_ORDERS]) if _ORDERS in os.environ else of_the_run()
    if point is CrashPoint.RECOVERED:
        _look(where, shard)
    order = where / f"order-{shard}"
    try:
        wanted = order.read_text()
    except FileNotFoundError:
        return
    recovering = point.startswith("recover")
    if wanted not in {point, COMMIT_SENT if point is CrashPoint.BEFORE_COMMIT else point} or not (rows or recovering):
        return
    if recovering and not (where / f"hit-{shard}").exists() and point is not CrashPoint.RECOVERED:
        return  # nothing to recover
    order.unlink()
    _write(where / f"arrived-{shard}", {"point": wanted, "pid": os.getpid(), "rows": rows})
    while wanted != COMMIT_SENT and not (where / f"go-{shard}").exists():
        time.sleep(0.1)


def _look(where: Path, shard: int) -> None:
    """After recovery, note how many of the rows that were in flight at the last kill are still there."""
    hit = where / f"hit-{shard}"
    if not hit.exists():
        return
    given = json.loads(hit.read_text())
    told = where / "variables"
    if told.exists():
        os.environ.update(json.loads(told.read_text()))
    module, _, function = os.environ.get(_LEFT, "").partition(":")
    if function:
        left = getattr(importlib.import_module(module), function)(given["rows"])
        line = {"shard": shard, "number": given["number"], "left": left, "of": len(given["rows"])}
        with (where / "recovered").open("a") as log:
            log.write(json.dumps(line) + "\n")
    hit.unlink()


def _write(path: Path, content: object) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content))
    draft.rename(path)
