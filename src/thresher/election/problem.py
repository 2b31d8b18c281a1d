"""Errors of an election that somebody has to act on. Temporary trouble is waited out and logged, not raised.

Each error takes positional arguments only, like every error of Thresher: so it survives pickling.
"""

from typing import ClassVar

from thresher.core.errors import ThresherError


class ElectionProblem(ThresherError):  # noqa: N818
    """Base class: competing again does not help until somebody has acted."""

    exit_code: ClassVar[int] = 4


class ElectionMisused(ElectionProblem):
    """A wrong call, such as a second `start`."""

    exit_code: ClassVar[int] = 1


class ElectionRefused(ElectionProblem):
    """The broker or the database refused: for example the session time-out, or a missing table."""


class AccessRefused(ElectionRefused):
    """Credentials or permissions were refused for longer than the grace period."""


class LeaderTopicMissing(AccessRefused):
    """The leader topic does not exist, and we may not create it."""
