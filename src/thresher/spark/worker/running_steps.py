"""The running steps of an attempt at a shard, by name, and for how long each has run. Heartbeats carry them.

A step is entered by one thread at a time, and any other may ask for its age. Entering costs one reading of the clock,
so that a step may be as short as one query.
"""

import time
from collections.abc import Callable
from types import TracebackType


class RunningStep:
    """A step of an attempt. It runs from entry to exit."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        # When the step was entered; None while it does not run.
        self.began: float | None = None

    def __enter__(self) -> None:
        self.began = self._monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.began = None


class RunningSteps:
    """All steps of one attempt. `step` is for the thread that enters it; `ages` may be asked from any thread."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._steps: dict[str, RunningStep] = {}

    def step(self, name: str) -> RunningStep:
        """Return the step of this name, the same object each time: a thread that enters it often may keep it."""
        return self._steps.setdefault(name, RunningStep(self._monotonic))

    def ages(self) -> dict[str, float]:
        """Return for how many seconds each running step has run."""
        now = self._monotonic()
        # The copy is atomic under the interpreter's lock, so that other threads can add steps meanwhile.
        began = {name: step.began for name, step in self._steps.copy().items()}
        return {name: max(0.0, now - moment) for name, moment in began.items() if moment is not None}
