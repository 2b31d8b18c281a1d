"""The errors of an archive. With each of them, a row is removed from the outbox only if it is in the archive."""

from thresher.core.errors import PipelineProblem, ThresherError, Trouble


class ArchiverBusy(ThresherError):  # noqa: N818
    """Another archiver works on the same outbox, or has taken a batch over. Try again later."""

    retryable = True


class ArchiveRefused(PipelineProblem):
    """The outbox cannot be archived, or not to this target: an operator has to act."""


class ArchiveTrouble(Trouble):
    """A file could not be written or read, for example on a full disk or a file system that is not reachable."""
