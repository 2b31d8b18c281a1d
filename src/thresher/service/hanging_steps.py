"""Steps of shards that hang, because they have run for too long, and when to log them. Pure decisions, no clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from thresher.spark.driver.snapshot import ShardSnapshot

# The time after which a step that still hangs is logged again.
_AGAIN_SECONDS = 60.0

# A shard and the name of its step.
StepKey = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingStep:
    """A step that has run for too long, and the reason if it is known."""

    shard: int
    step: str
    seconds: float
    why: str | None = None

    @property
    def key(self) -> StepKey:
        """The shard and the name of its step."""
        return self.shard, self.step

    def __str__(self) -> str:
        known = self.why or "what it waits for is not known"
        return f"step {self.step!r} of shard {self.shard} has not ended for {self.seconds:.0f} s: {known}"


def hanging_steps_of(
    shards: Iterable[ShardSnapshot], after_seconds: float, reasons: Mapping[StepKey, str] | None = None
) -> tuple[HangingStep, ...]:
    """Return the steps that have run for `after_seconds`, with their known reasons, the oldest step first."""
    known = reasons or {}
    found = [
        HangingStep(shard=each.shard, step=step, seconds=round(seconds, 1), why=known.get((each.shard, step)))
        for each in shards
        for step, seconds in each.steps.items()
        if seconds >= after_seconds
    ]
    return tuple(sorted(found, key=lambda step: -step.seconds))


@dataclass(frozen=True, slots=True)
class LoggedSteps:
    """The hanging steps that were logged, and when each was logged last."""

    at: Mapping[StepKey, float] = field(default_factory=dict)

    def due(self, hanging: Sequence[HangingStep], now: float) -> list[HangingStep]:
        """Return the steps to log now: new ones, and steps that still hang a minute after the last time."""
        return [each for each in hanging if now - self.at.get(each.key, float("-inf")) >= _AGAIN_SECONDS]

    def ended(self, hanging: Sequence[HangingStep]) -> list[StepKey]:
        """Return the logged steps that do not hang any more."""
        return sorted(self.at.keys() - {each.key for each in hanging})

    def logged(self, hanging: Sequence[HangingStep], due: Sequence[HangingStep], now: float) -> "LoggedSteps":
        """Return the state after the steps in `due` were logged."""
        at = {each.key: self.at[each.key] for each in hanging if each.key in self.at}
        return LoggedSteps({**at, **{each.key: now for each in due}})
