"""How a pipeline is supervised: restarts and back-off, time-outs, the grace period of a stop, the memory limit."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from thresher.spark.problem import PipelineInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every limit of the supervision. The defaults suit a pipeline of many small batches."""

    # The first restart waits about this long, each further one twice as long as the one before, up to the maximum.
    back_off_seconds: float = 0.2
    back_off_most_seconds: float = 30.0
    # An attempt that ran this long was healthy: it resets the count of failures.
    healthy_seconds: float = 60.0
    # Restarts in a row without a healthy attempt, after which the shard has failed. None: restart for ever.
    restarts: int | None = None
    # A step of a shard that has run for this long is reported: it hangs, or waits for a server or a lock.
    stall_seconds: float = 30.0
    # The grace period: the time that a stopping shard has to finish its open batch.
    grace_seconds: float = 30.0
    # The interval of the heartbeats in both directions.
    beat_seconds: float = 1.0
    # The driver ends and replaces a task from which it has received nothing for this long.
    silence_seconds: float = 3.0
    # A task that has received nothing from the driver for this long ends itself. Longer, because the driver is busier.
    deaf_seconds: float = 10.0
    # The time that a task without a driver has to finish its open batch.
    orphan_seconds: float = 5.0
    # A shard whose task has not connected within this time is reported as waiting for a slot.
    slot_seconds: float = 30.0
    # A worker process with more resident memory than this is ended and restarted. None: no limit.
    memory_bytes: int | None = 1 << 30

    def __post_init__(self) -> None:
        wrong = [
            f"{field.name} is {getattr(self, field.name)!r}, which is not a positive number of seconds"
            for field in fields(self)
            if field.name.endswith("_seconds") and not _positive(getattr(self, field.name))
        ]
        if self.restarts is not None and not _whole(self.restarts, least=0):
            wrong.append(f"restarts is {self.restarts!r}: give a number from 0, or None to never give up")
        if self.memory_bytes is not None and not _whole(self.memory_bytes, least=1 << 26):
            wrong.append(f"memory_bytes is {self.memory_bytes!r}: a Python worker alone needs 64 MiB")
        if not wrong:
            if self.back_off_most_seconds < self.back_off_seconds:
                wrong.append("back_off_most_seconds is less than back_off_seconds")
            wrong += [
                f"{name} is less than two beats of {self.beat_seconds:g} s: one late heartbeat would count as silence"
                for name in ("silence_seconds", "deaf_seconds")
                if getattr(self, name) < 2 * self.beat_seconds
            ]
        if wrong:
            raise PipelineInvalid(f"the policy is invalid: {'; '.join(wrong)}")

    def back_off(self, failures: int, draw: Callable[[], float]) -> float:
        """Return the back-off in seconds after this number of failures in a row.

        `draw` returns a random number from 0 to 1. Half of the back-off is random, so that shards that failed
        together do not restart together.
        """
        # The exponent is bounded, because 2.0 ** 1024 overflows.
        longest = min(self.back_off_most_seconds, self.back_off_seconds * 2.0 ** min(failures - 1, 60))
        return longest * (0.5 + 0.5 * draw())


def _whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
