"""Named points between two steps of a protocol, at which a crash test may kill the process."""

import enum
from collections.abc import Callable, Sequence
from typing import Any

from thresher.spark.worker.chain import resolve


class CrashPoint(enum.StrEnum):
    """A point at which a crash test may end an attempt."""

    BEFORE_BEGIN = "before-begin"
    PRODUCED_SOME = "produced-some"
    FLUSHED = "flushed"
    BEFORE_COMMIT = "before-commit"
    COMMITTED = "committed"
    SETTLING = "settling"
    # A tail has written its dead rows, and has not confirmed its replication slot yet.
    DEAD_WRITTEN = "dead-written"
    SETTLED = "settled"
    RECOVERY_FENCED = "recovery-fenced"
    RECOVERY_CHECKED = "recovery-checked"
    RECOVERY_READ = "recovery-read"
    RECOVERY_SETTLING = "recovery-settling"
    RECOVERED = "recovered"


# Called with the crash point, the shard and the ids of the rows in flight.
Hook = Callable[[CrashPoint, int, list[int]], None]


class CrashPoints:
    """Calls a crash test's hook at each crash point of one attempt. Without a hook, each costs a comparison."""

    def __init__(self, hook: str | None, shard: int) -> None:
        """`hook` is a function by import path."""
        self._hook: Hook | None = None
        if hook is not None:
            found: Any = resolve(hook, arguments=3)
            self._hook = found
        self._shard = shard
        self._rows: list[int] = []

    @property
    def watched(self) -> bool:
        """Whether there is a hook."""
        return self._hook is not None

    def hold(self, rows: Sequence[int]) -> None:
        """Note which rows are in flight."""
        if self._hook is not None:
            self._rows = list(rows)

    def reach(self, point: CrashPoint, rows: Sequence[int] | None = None) -> None:
        """Call the hook with a crash point, and with these rows or those in flight."""
        if self._hook is not None:
            self._hook(point, self._shard, self._rows if rows is None else list(rows))
