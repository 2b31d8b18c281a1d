"""Errors in the use of a service."""

from typing import ClassVar

from thresher.core.errors import ThresherError


class ServiceMisused(ThresherError):  # noqa: N818
    """A call that cannot be meant: a service is started once, and waited for when it was."""

    exit_code: ClassVar[int] = 1
