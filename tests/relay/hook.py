"""What runs in a worker at the seams: stops exactly there when it was told to, and looks what recovery has done.

A directory (in the environment) carries the orders: `order-<shard>` names the seam to stop at. Who gets there leaves
`arrived-<shard>` with its process and the rows in flight, and stays until it is killed, or until `go-<shard>` is there.
After each recovery, `hit-<shard>` says which rows were in flight at the last kill, and how many of them are left is
noted in `recovered`.
"""

import json
import os
import time
from pathlib import Path

import psycopg

from thresher.delivery.crash_points import CrashPoint

HOOK = "tests.relay.hook:reached"
# Not a seam of the code: the answer to a commit is on its way, which only the wire can tell.
COMMIT_SENT = "commit-sent"


def reached(seam: CrashPoint, shard: int, rows: list[int]) -> None:
    where = Path(os.environ["THRESHER_SEAMS"])
    if seam is CrashPoint.RECOVERED:
        _look(where, shard)
    order = where / f"order-{shard}"
    try:
        wanted = order.read_text()
    except FileNotFoundError:
        return
    recovering = seam.startswith("recover")
    if wanted not in {seam, COMMIT_SENT if seam is CrashPoint.BEFORE_COMMIT else seam} or not (rows or recovering):
        return
    if recovering and not (where / f"hit-{shard}").exists() and seam is not CrashPoint.RECOVERED:
        return  # nothing to recover from
    order.unlink()
    _write(where / f"arrived-{shard}", {"seam": wanted, "pid": os.getpid(), "rows": rows})
    while wanted != COMMIT_SENT and not (where / f"go-{shard}").exists():
        time.sleep(0.1)


def _look(where: Path, shard: int) -> None:
    """Note how many of the rows that were in flight at the last kill are still there, now that recovery is done."""
    hit = where / f"hit-{shard}"
    if not hit.exists():
        return
    given = json.loads(hit.read_text())
    with psycopg.connect(os.environ["THRESHER_SEAMS_DSN"]) as connection:
        row = connection.execute("SELECT count(*) FROM outbox WHERE id = ANY (%s)", [given["rows"]]).fetchone()
    line = {"shard": shard, "number": given["number"], "left": row[0] if row else None, "of": len(given["rows"])}
    with (where / "recovered").open("a") as log:
        log.write(json.dumps(line) + "\n")
    hit.unlink()


def _write(path: Path, content: object) -> None:
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(content))
    draft.rename(path)
