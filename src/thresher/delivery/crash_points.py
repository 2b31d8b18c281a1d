"""The named places between two steps of a protocol: where a crash test kills, and nothing else happens."""

import enum
from collections.abc import Callable, Sequence
from typing import Any

from thresher.spark.worker.chain import resolve


class CrashPoint(enum.StrEnum):
    """Where an attempt can be cut off."""

    BEFORE_BEGIN = "before-begin"
    PRODUCED_SOME = "produced-some"
    FLUSHED = "flushed"
    BEFORE_COMMIT = "before-commit"
    COMMITTED = "committed"
    SETTLING = "settling"
    # A tail's dead changes are set aside, and its slot is not confirmed.
    DEAD_WRITTEN = "dead-written"
    SETTLED = "settled"
    RECOVERY_FENCED = "recovery-fenced"
    RECOVERY_CHECKED = "recovery-checked"
    RECOVERY_READ = "recovery-read"
    RECOVERY_SETTLING = "recovery-settling"
    RECOVERED = "recovered"


# Called with the crash point, the shard and the ids of the rows that are in flight there.
Hook = Callable[[CrashPoint, int, list[int]], None]


class CrashPoints:
    """Tells a crash test where one attempt is. Without a hook, it costs a comparison."""

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
        """Whether anybody is told."""
        return self._hook is not None

    def hold(self, rows: Sequence[int]) -> None:
        """Take in which rows are in flight."""
        if self._hook is not None:
            self._rows = list(rows)

    def reach(self, point: CrashPoint, rows: Sequence[int] | None = None) -> None:
        """Tell that a place was reached, with these rows or with those in flight."""
        if self._hook is not None:
            self._hook(point, self._shard, self._rows if rows is None else list(rows))
