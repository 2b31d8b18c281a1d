"""The counts of a random soak, and its problems besides the verdict."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outline:
    """The counts of a run, for its last line."""

    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    exits: Counter[int] = field(default_factory=Counter)
    unreached: int = 0
    longest_still_seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def stood_still(self, seconds: float) -> None:
        """Note for how long work was pending without progress."""
        self.longest_still_seconds = max(self.longest_still_seconds, seconds)

    def summary(self, figures: Mapping[str, int]) -> Mapping[str, Any]:
        """Return the counts of the run, with the figures of its verdict."""
        return {
            "faults": dict(sorted(self.faults.items())),
            "missed": dict(sorted(self.missed.items())),
            "unreached": self.unreached,
            "longest_still_seconds": round(self.longest_still_seconds, 1),
            "exits": {str(code): count for code, count in sorted(self.exits.items())},
            "verdict": dict(figures),
            "wrong": self.wrong,
        }
