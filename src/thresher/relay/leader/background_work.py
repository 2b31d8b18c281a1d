"""The port of background work that only the leader does: archiving. No guarantee depends on it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class BackgroundWork(Protocol):
    """Work in a thread of its own. A failure is reported, and does not end the relay. Safe from any thread."""

    def during(self, application: str) -> AbstractContextManager[None]:
        """Work for the duration of a term. `application` is the prefix of the database sessions' names."""

    @property
    def alarms(self) -> Mapping[str, str]:
        """The alarms: what is wrong, and why."""

    @property
    def rows(self) -> int:
        """How many rows this process has archived, in all its terms."""

    @property
    def failures(self) -> int:
        """How many runs failed."""

    @property
    def success_age_seconds(self) -> float | None:
        """Seconds since a run last succeeded, or since the term began; None while the relay does not lead."""
