"""A hook under which the clock that a worker goes by is 50 minutes ahead. Workers are not used again."""

from thresher.core.clock import ServerClock
from thresher.relay.seam import Seam

AHEAD_MS = 50 * 60 * 1000
_right = ServerClock.now_ms


def _ahead(clock: ServerClock) -> int:
    return _right(clock) + AHEAD_MS


def reached(_seam: Seam, _shard: int, _rows: list[int]) -> None:
    ServerClock.now_ms = _ahead  # type: ignore[method-assign,assignment]
