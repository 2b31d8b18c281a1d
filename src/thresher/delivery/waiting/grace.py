"""How long something that cannot be sent has been waited for: one rule for topics and for rows.

Nothing is set aside before its grace is over. A wait that nobody looked at for long begins anew: what happened
meanwhile is not known.
"""

from dataclasses import dataclass

# Rows that are held are looked at every few seconds.
_FORGOTTEN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Grace:
    """Since when something is waited for, and when that was last seen (monotonic)."""

    since: float
    seen: float

    def forgotten(self, now: float, seconds: float) -> bool:
        """Whether nobody has looked for long, of a grace of so many seconds."""
        return now - self.seen > max(_FORGOTTEN_SECONDS, seconds)

    def over(self, seconds: float) -> bool:
        """Whether it has been waited for so long."""
        return self.seen - self.since >= seconds


def waited(before: Grace | None, now: float, seconds: float) -> Grace:
    """Return the wait as it is now: a new one if there was none, or if it was not looked at for long."""
    if before is None or before.forgotten(now, seconds):
        return Grace(now, now)
    return Grace(before.since, now)
