"""A hook that holds one worker at a crash point until it is released, for relays on the run's own Spark.

These workers share the environment of the run, so the orders are in its temporary directory.
"""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from thresher.delivery.crash_points import CrashPoint

HOOK = f"{__name__}:reached"
_PLACE = "thresher-standing"
# A limit, in case the test was interrupted.
_LONGEST_SECONDS = 240.0


def reached(point: CrashPoint, _shard: int, rows: list[int]) -> None:
    place = Path(tempfile.gettempdir()) / _PLACE
    if not rows or not (place / f"order-{point}").exists() or (place / "arrived").exists():
        return
    (place / "arrived").touch()
    deadline = time.monotonic() + _LONGEST_SECONDS
    while place.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


class Standing:
    """An order to hold a worker, and its release."""

    def __init__(self, place: Path) -> None:
        self._place = place

    @property
    def arrived(self) -> bool:
        """Whether a worker is held."""
        return (self._place / "arrived").exists()

    def go(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)


@contextlib.contextmanager
def standing(point: CrashPoint) -> Iterator[Standing]:
    """Hold the next worker that reaches this crash point with rows in flight; release it at the end."""
    place = Path(tempfile.gettempdir()) / _PLACE
    place.mkdir()
    (place / f"order-{point}").touch()
    stood = Standing(place)
    try:
        yield stood
    finally:
        stood.go()
