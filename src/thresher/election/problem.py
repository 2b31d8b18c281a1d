"""Errors of an election that somebody has to act on. Trouble that time mends is waited for, and told in the log.

All are built from positional arguments alone, as every error of Thresher.
"""

from typing import ClassVar

from thresher.core.errors import ThresherError


class ElectionProblem(ThresherError):  # noqa: N818
    """Base of the election's own errors: competing again does not help until somebody has acted."""

    exit_code: ClassVar[int] = 4


class ElectionMisused(ElectionProblem):
    """A call that cannot be meant: a leadership is started once."""

    exit_code: ClassVar[int] = 1


class ElectionRefused(ElectionProblem):
    """The broker or the database answered and said no: a session's length, a missing table."""


class AccessRefused(ElectionRefused):
    """Credentials or permissions were refused, for longer than the grace: a shorter refusal is waited out."""


class LeaderTopicMissing(AccessRefused):
    """The leader topic is not there, and we may not make it."""
