"""A hook that keeps a worker at a seam for as long as a test wants.

`<temporary directory>/stall-<shard>` names the seam; who gets there with rows leaves `stalled-<shard>`, and goes on
when the order is gone. Beats go on meanwhile, so nobody takes the worker for dead.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.processes import eventually
from thresher.delivery.crash_points import CrashPoint

HOOK = f"{__name__}:reached"


def reached(seam: CrashPoint, shard: int, rows: list[int]) -> None:
    order, sign = _order(shard), _sign(shard)
    if rows and order.exists() and order.read_text() == seam:
        sign.touch()
        while order.exists():
            time.sleep(0.05)


@contextlib.contextmanager
def stalled(seams: Mapping[int, CrashPoint], store: Callable[[], None], seconds: float = 90.0) -> Iterator[None]:
    """Order shards to stall; the body begins once all do, and at its end they go on.

    `store` sees, at every look, that there are rows for them: not before the orders are there, and again where rows
    have passed a seam behind a commit without stalling, since that took long and recovery settled them.
    """
    for shard, seam in seams.items():
        draft = _order(shard).with_suffix(".draft")
        draft.write_text(seam)
        draft.rename(_order(shard))

    def all_stall() -> bool:
        store()
        return all(_sign(shard).exists() for shard in seams)

    try:
        eventually(all_stall, seconds)
        yield
    finally:
        for shard in seams:
            _order(shard).unlink()
            _sign(shard).unlink(missing_ok=True)


def _order(shard: int) -> Path:
    return Path(tempfile.gettempdir()) / f"stall-{shard}"


def _sign(shard: int) -> Path:
    return Path(tempfile.gettempdir()) / f"stalled-{shard}"
