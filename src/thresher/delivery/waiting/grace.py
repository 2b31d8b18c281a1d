"""The grace of topics and rows that cannot be sent: how long they have waited.

No row is dead before its grace is over. If a wait was not looked at for long, it begins again: the topic or row
may have been fine meanwhile.
"""

from dataclasses import dataclass

# Held rows are looked at every few seconds, so a longer gap is no continuous wait.
_FORGOTTEN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Grace:
    """When a wait began, and when it was last seen to go on (monotonic)."""

    since: float
    seen: float

    def forgotten(self, now: float, seconds: float) -> bool:
        """Whether the wait was not looked at for 30 s or, if that is longer, for a grace of `seconds`."""
        return now - self.seen > max(_FORGOTTEN_SECONDS, seconds)

    def over(self, seconds: float) -> bool:
        """Whether the wait has lasted for a grace of `seconds`."""
        return self.seen - self.since >= seconds


def waited(before: Grace | None, now: float, seconds: float) -> Grace:
    """Return the wait as of now: a new one if there was none, or if it was not looked at for long."""
    if before is None or before.forgotten(now, seconds):
        return Grace(now, now)
    return Grace(before.since, now)
