"""What the configuration leaves to choose about rows that cannot be sent."""

import enum
from dataclasses import dataclass

from thresher.delivery.fate import Dead
from thresher.delivery.problem import Halted
from thresher.delivery.row import Row


class Poison(enum.StrEnum):
    """What to do about a row that can never be sent."""

    DEAD_LETTER = "dead-letter"
    BLOCK_KEY = "block-key"
    HALT = "halt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The choices."""

    poison: Poison = Poison.DEAD_LETTER
    grace_seconds: float = 60.0
    # The part of the grace that others have waited already: for topics, and for single rows.
    waited_seconds: float = 0.0
    row_waited_seconds: float = 0.0
    # Rows of several stored topics and keys may be sent to one.
    merging: bool = False

    @property
    def topic_grace_seconds(self) -> float:
        """How long a topic that is not there is still waited for."""
        return max(0.0, self.grace_seconds - self.waited_seconds)

    @property
    def row_grace_seconds(self) -> float:
        """How long a single row that cannot be sent yet still waits."""
        return max(0.0, self.grace_seconds - self.row_waited_seconds)

    def in_vain(self, why: str) -> str:
        """Return the reason of a row that has waited out its grace."""
        return f"{why}, for {self.grace_seconds:g} s"

    def condemned(self, row: Row, fate: Dead) -> Dead:
        """Return the fate of a row that can never be sent. Raises `Halted` where the policy is to end."""
        if self.poison is Poison.HALT:
            raise Halted(
                f"row {row.id} (topic {row.topic!r}) cannot be sent: {fate.reason}; mend or delete it and start again, "
                "or choose another policy than 'halt'"
            )
        return fate._replace(blocking=self.poison is Poison.BLOCK_KEY and row.stream is not None)
