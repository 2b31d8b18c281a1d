"""How a pipeline is supervised: restarts, giving up, stopping, and how long silence is borne."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

from thresher.spark.problem import PipelineInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Every bound that the engine keeps. The defaults suit a pipeline of many small batches."""

    # The first restart waits about this long, each further one twice as long as the one before, up to the maximum.
    back_off_seconds: float = 0.2
    back_off_most_seconds: float = 30.0
    # An attempt that ran this long was healthy: the failures before it are forgotten.
    healthy_seconds: float = 60.0
    # So many restarts in a row without a healthy attempt between them; then the shard has failed. None: never give up.
    restarts: int | None = None
    # What a shard may take to finish its open batch when it is told to stop.
    grace_seconds: float = 30.0
    # How often both ends of a line say that they are there.
    beat_seconds: float = 1.0
    # A task that says nothing for so long is ended and replaced.
    silence_seconds: float = 3.0
    # A task that hears nothing from the driver for so long ends itself: longer, because a driver does more at once.
    deaf_seconds: float = 10.0
    # What a task without a driver may take to finish its open batch.
    orphan_seconds: float = 5.0
    # A task that has not called within this time is reported as waiting for a slot.
    slot_seconds: float = 30.0
    # Resident memory of a shard's process, beyond which it is ended and restarted. None: no limit.
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
                f"{name} is less than two beats, so one late beat would count as silence"
                for name in ("silence_seconds", "deaf_seconds")
                if getattr(self, name) < 2 * self.beat_seconds
            ]
        if wrong:
            raise PipelineInvalid(f"the policy cannot be kept: {'; '.join(wrong)}")

    def back_off(self, failures: int, draw: Callable[[], float]) -> float:
        """Return the seconds to wait after so many failures in a row; `draw` gives a number from 0 to 1.

        Half of it is fixed and half drawn, so that shards that failed together do not come back together.
        """
        # The exponent is bounded: 2.0 ** 1024 is not a number.
        longest = min(self.back_off_most_seconds, self.back_off_seconds * 2.0 ** min(failures - 1, 60))
        return longest * (0.5 + 0.5 * draw())


def _whole(value: object, *, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
