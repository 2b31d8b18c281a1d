"""How long a process does not lead after a leadership that failed: a decision, no clock.

It was superseded although it was elected, or it stepped down because it made no progress. The first cool-down is a
second; each further one is twice as long, up to a minute. A leadership that lasted longer than that resets it. So two
processes that are elected by different elections supersede each other less and less often.
"""

import math
from dataclasses import dataclass
from typing import Self

# How long a leader may make no progress before it steps down.
STEP_DOWN_SECONDS = 30.0
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoolDown:
    """Until when it lasts, and how long the next one is."""

    until: float = -math.inf
    next_seconds: float = _FIRST_SECONDS

    def over(self, now: float) -> bool:
        """Whether the process may lead again."""
        return now >= self.until

    def failed(self, *, lasted: float, now: float) -> Self:
        """Return the cool-down after a leadership that was good for so many seconds and failed."""
        seconds = _FIRST_SECONDS if lasted > _LONGEST_SECONDS else self.next_seconds
        return type(self)(until=now + seconds, next_seconds=min(2 * seconds, _LONGEST_SECONDS))
