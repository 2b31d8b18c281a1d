"""A hook that holds a worker at a crash point for as long as a test wants.

`<temporary directory>/stall-<shard>` names the crash point. A worker that reaches it with rows writes
`stalled-<shard>`, and goes on when the order is removed. Its heartbeats go on, so the driver does not replace it.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.processes import eventually
from thresher.delivery.crash_points import CrashPoint

HOOK = f"{__name__}:reached"


def reached(point: CrashPoint, shard: int, rows: list[int]) -> None:
    order, sign = _order(shard), _sign(shard)
    if rows and order.exists() and order.read_text() == point:
        sign.touch()
        while order.exists():
            time.sleep(0.05)


@contextlib.contextmanager
def stalled(points: Mapping[int, CrashPoint], store: Callable[[], None], seconds: float = 90.0) -> Iterator[None]:
    """Order shards to stall; the body begins once all have stalled, and at its end they go on.

    `store` is called until all have stalled, and provides rows for them. One call may not be enough: after a commit
    that took long, recovery settles the rows, and none stalls at a crash point after the commit.
    """
    for shard, point in points.items():
        draft = _order(shard).with_suffix(".draft")
        draft.write_text(point)
        draft.rename(_order(shard))

    def all_stall() -> bool:
        store()
        return all(_sign(shard).exists() for shard in points)

    try:
        eventually(all_stall, seconds)
        yield
    finally:
        for shard in points:
            _order(shard).unlink()
            _sign(shard).unlink(missing_ok=True)


def _order(shard: int) -> Path:
    return Path(tempfile.gettempdir()) / f"stall-{shard}"


def _sign(shard: int) -> Path:
    return Path(tempfile.gettempdir()) / f"stalled-{shard}"
