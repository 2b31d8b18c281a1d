"""The named places between two steps of the protocol: where a crash test kills, and nothing else happens."""

import enum
from collections.abc import Callable
from typing import Any

from thresher.spark.worker.chain import resolve


class Seam(enum.StrEnum):
    """Where an attempt can be cut off."""

    BEFORE_BEGIN = "before-begin"
    PRODUCED_SOME = "produced-some"
    FLUSHED = "flushed"
    BEFORE_COMMIT = "before-commit"
    COMMITTED = "committed"
    SETTLING = "settling"
    SETTLED = "settled"
    RECOVERY_FENCED = "recovery-fenced"
    RECOVERY_CHECKED = "recovery-checked"
    RECOVERY_READ = "recovery-read"
    RECOVERY_SETTLING = "recovery-settling"
    RECOVERED = "recovered"


# Called with the seam, the shard and the ids of the rows that are in flight there.
Hook = Callable[[Seam, int, list[int]], None]


def hook_of(path: str | None) -> Hook | None:
    """Import a hook."""
    if path is None:
        return None
    hook: Any = resolve(path, arguments=3)
    return hook  # type: ignore[no-any-return]
