"""How long a process does not lead after a failed leadership. Pure decisions, no clock.

A leadership has failed if it was superseded although elected, or stepped down without progress. The first cool-down is
a second; each further one is twice as long, up to a minute. A leadership of more than a minute resets it. Two processes
that use different elections by mistake therefore supersede each other less and less often.
"""

import math
from dataclasses import dataclass
from typing import Self

# How long a leader may make no progress before it steps down.
STEP_DOWN_SECONDS = 30.0
_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoolDown:
    """When the cool-down ends, and how long the next one is."""

    until: float = -math.inf
    next_seconds: float = _FIRST_SECONDS

    def over(self, now: float) -> bool:
        """Whether the process may lead again."""
        return now >= self.until

    def failed(self, *, lasted: float, now: float) -> Self:
        """Return the cool-down after a failed leadership that had worked for `lasted` seconds."""
        seconds = _FIRST_SECONDS if lasted > _LONGEST_SECONDS else self.next_seconds
        return type(self)(until=now + seconds, next_seconds=min(2 * seconds, _LONGEST_SECONDS))
