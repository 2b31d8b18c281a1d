"""What can be wrong with how a harvest is used."""

from typing import ClassVar

from thresher.core.errors import ThresherError


class HarvestMisused(ThresherError):  # noqa: N818
    """A call that cannot be meant: a harvest is started once, and waited for when it was."""

    exit_code: ClassVar[int] = 1
