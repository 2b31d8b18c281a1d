"""Steps of shards that have run for too long: which they are, and when to tell of them. Decisions, no clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from thresher.spark.driver.snapshot import ShardSnapshot

# A step that hangs on is told of again after so long.
_AGAIN_SECONDS = 60.0

# A shard and the name of its step.
StepKey = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A step that has not ended for so long, and what is known about the reason."""

    shard: int
    step: str
    seconds: float
    why: str | None = None

    @property
    def key(self) -> StepKey:
        """Which step of which shard."""
        return self.shard, self.step

    def __str__(self) -> str:
        known = self.why or "what it waits for is not known"
        return f"step {self.step!r} of shard {self.shard} has not ended for {self.seconds:.0f} s: {known}"


def stalls_of(
    shards: Iterable[ShardSnapshot], after_seconds: float, reasons: Mapping[StepKey, str] | None = None
) -> tuple[Stall, ...]:
    """Return the steps that have run for so long, with the reasons that were found out, the oldest step first."""
    known = reasons or {}
    found = [
        Stall(shard=each.shard, step=step, seconds=round(seconds, 1), why=known.get((each.shard, step)))
        for each in shards
        for step, seconds in each.steps.items()
        if seconds >= after_seconds
    ]
    return tuple(sorted(found, key=lambda stall: -stall.seconds))


@dataclass(frozen=True, slots=True)
class ToldStalls:
    """The steps that were told of, and when last."""

    at: Mapping[StepKey, float] = field(default_factory=dict)

    def due(self, stalls: Sequence[Stall], now: float) -> list[Stall]:
        """Return those to tell of: the new ones, and those that hang on, a minute later."""
        return [each for each in stalls if now - self.at.get(each.key, float("-inf")) >= _AGAIN_SECONDS]

    def ended(self, stalls: Sequence[Stall]) -> list[StepKey]:
        """Return the steps that were told of and hang no more."""
        return sorted(self.at.keys() - {each.key for each in stalls})

    def told(self, stalls: Sequence[Stall], due: Sequence[Stall], now: float) -> "ToldStalls":
        """Return what was told of, once these were."""
        at = {each.key: self.at[each.key] for each in stalls if each.key in self.at}
        return ToldStalls({**at, **{each.key: now for each in due}})
