"""What can go wrong with an archive. Whatever it is, no row is gone that is not in the archive."""

from thresher.core.errors import PipelineProblem, ThresherError, Trouble


class ArchiverBusy(ThresherError):  # noqa: N818
    """Another archiver works on the same outbox, or has taken a batch over. Try again later."""

    retryable = True


class ArchiveRefused(PipelineProblem):
    """The outbox cannot be archived, or not to there: somebody has to act."""


class ArchiveTrouble(Trouble):
    """A file could not be written or read: a full disk, or a file system that is away."""
