"""Errors in the use of a service."""

from typing import ClassVar

from thresher.core.errors import ThresherError


class ServiceMisused(ThresherError):  # noqa: N818
    """A call in the wrong state: a service is started once, and waited for after its start."""

    exit_code: ClassVar[int] = 1
