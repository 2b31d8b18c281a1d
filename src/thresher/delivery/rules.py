"""The configured rules for rows that cannot be sent: the poison policy and the grace."""

import enum
from dataclasses import dataclass

from thresher.delivery.fate import Dead
from thresher.delivery.problem import Halted
from thresher.delivery.row import Row


class Poison(enum.StrEnum):
    """The policy for a row that can never be sent."""

    DEAD_LETTER = "dead-letter"
    BLOCK_KEY = "block-key"
    HALT = "halt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules for rows that cannot be sent."""

    poison: Poison = Poison.DEAD_LETTER
    grace_seconds: float = 60.0
    # The part of the grace that is over already, under other processes: for topics, and for single rows with ids up to
    # `row_waited_id`.
    waited_seconds: float = 0.0
    row_waited_seconds: float = 0.0
    row_waited_id: int = 0
    # Rows whose topic's grace is over are read by sweeps if they are many. Otherwise, they are set aside as they come.
    sweeps: bool = True
    # So many missing topics of a shard may wait for their grace: few where their rows wait in memory, or one by one.
    # Where reads leave out topics, no more of them are read at a time (`holds`), so that each has its grace.
    most_graces: int = 5_000
    # Transforms may send rows of several stored topics and keys to the same topic and key.
    merging: bool = False

    @property
    def topic_grace_seconds(self) -> float:
        """How long rows still wait for a missing topic."""
        return max(0.0, self.grace_seconds - self.waited_seconds)

    def row_waited(self, id_: int) -> float:
        """Return how long a single row has waited already, in seconds."""
        return self.row_waited_seconds if id_ <= self.row_waited_id else 0.0

    def grace_over_reason(self, why: str) -> str:
        """Return the dead-letter reason of a row whose grace is over."""
        return f"{why}, for {self.grace_seconds:g} s"

    def dead_fate(self, row: Row, fate: Dead) -> Dead:
        """Return the fate of a row that can never be sent. Raises `Halted` if the policy is `halt`."""
        if self.poison is Poison.HALT:
            raise Halted(
                f"row {row.id} (topic {row.topic!r}) cannot be sent: {fate.reason}; correct or delete it and start "
                "again, or choose another 'poison' policy than 'halt'"
            )
        return fate._replace(blocking=self.poison is Poison.BLOCK_KEY and row.stream is not None)
