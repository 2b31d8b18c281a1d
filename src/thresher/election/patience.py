"""How long a competitor bears being refused: decisions, no clock.

A token that was not refreshed once, a rotated password, a mistaken ACL: credentials and permissions are refused for a
moment and accepted again. So a refusal is waited out, with back-off. One that lasts longer than the grace is an error
that somebody has to act on. A competitor that has gone on for a while has a new grace.
"""

import math
from dataclasses import dataclass

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 5.0
# A client made anew has met its refusal by then.
_SOUND_SECONDS = 10.0
_FORGOTTEN_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How a competitor was refused of late. Times are monotonic."""

    grace_seconds: float
    # The first and the last refusal since it was accepted, and how long to wait after the last.
    since: float | None = None
    last: float = -math.inf
    wait_seconds: float = 0.0

    def refused(self, now: float) -> "Patience":
        """Take in a refusal. One that comes long after the last, because servers were down meanwhile, is the first."""
        first = self.since is None or now - self.last > _FORGOTTEN_SECONDS
        since = now if first or self.since is None else self.since
        wait = _FIRST_WAIT_SECONDS if first else min(2 * self.wait_seconds, _LONGEST_WAIT_SECONDS)
        # The last try is at the end of the grace.
        wait = max(0.0, min(wait, since + self.grace_seconds - now))
        return Patience(grace_seconds=self.grace_seconds, since=since, last=now, wait_seconds=wait)

    def went_on(self, since: float, now: float, *, leads: bool) -> "Patience":
        """Take in that no refusal has come since then: it is over for a leader, and for anybody after a while."""
        if self.since is None or not (leads or now - since >= _SOUND_SECONDS):
            return self
        return Patience(grace_seconds=self.grace_seconds)

    @property
    def over(self) -> bool:
        """Whether the last refusal came when the grace had ended."""
        return self.since is not None and self.last - self.since >= self.grace_seconds
