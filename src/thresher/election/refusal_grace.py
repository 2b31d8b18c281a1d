"""How long a competitor waits out refused credentials and permissions: a pure decision without a clock.

A token that was not refreshed in time, a rotated password or a mistaken ACL is often refused only for a moment. So a
refusal is waited out with back-off. A refusal that lasts longer than the grace period is an error that somebody has to
act on. After some time without a refusal, the next one begins a new grace period.
"""

import math
from dataclasses import dataclass

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.2, 5.0
# A new client that is refused learns that within this time: after it, the client counts as accepted.
_SOUND_SECONDS = 10.0
_FORGOTTEN_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalGrace:
    """The recent refusals of a competitor. Times are monotonic."""

    grace_seconds: float
    # The first and the last refusal since the competitor was accepted, and the wait after the last.
    since: float | None = None
    last: float = -math.inf
    wait_seconds: float = 0.0

    def refused(self, now: float) -> "RefusalGrace":
        """Record a refusal. A refusal long after the last one, because servers were down, counts as the first."""
        first = self.since is None or now - self.last > _FORGOTTEN_SECONDS
        since = now if first or self.since is None else self.since
        wait = _FIRST_WAIT_SECONDS if first else min(2 * self.wait_seconds, _LONGEST_WAIT_SECONDS)
        # The last try is at the end of the grace.
        wait = max(0.0, min(wait, since + self.grace_seconds - now))
        return RefusalGrace(grace_seconds=self.grace_seconds, since=since, last=now, wait_seconds=wait)

    def went_on(self, since: float, now: float, *, leads: bool) -> "RefusalGrace":
        """Record that there was no refusal since then. This ends the grace period: at once for a leader, else later."""
        if self.since is None or not (leads or now - since >= _SOUND_SECONDS):
            return self
        return RefusalGrace(grace_seconds=self.grace_seconds)

    @property
    def over(self) -> bool:
        """Whether the last refusal came after the end of the grace period."""
        return self.since is not None and self.last - self.since >= self.grace_seconds
