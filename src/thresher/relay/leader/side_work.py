"""The port of work beside relaying, which is the archive's: done by the leader alone, and no part of any guarantee."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol


class SideWork(Protocol):
    """Work in a thread of its own. Its failure is told, and ends nothing. Safe from any thread."""

    def during(self, application: str) -> AbstractContextManager[None]:
        """Work while a term lasts, with database sessions whose names begin so."""

    @property
    def alarms(self) -> Mapping[str, str]:
        """What somebody should look at, and why."""

    @property
    def rows(self) -> int:
        """How many rows were archived in this process, over all its leaderships."""

    @property
    def failures(self) -> int:
        """How many runs failed."""

    @property
    def success_age_seconds(self) -> float | None:
        """Seconds since a run last succeeded, or since the term began; None while the relay does not lead."""
