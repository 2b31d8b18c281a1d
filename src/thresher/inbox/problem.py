"""What an inbox refuses."""

from thresher.core.errors import InvalidInput, ThresherError


class InboxBusy(ThresherError):  # noqa: N818
    """Another transaction processes the same message, and has not ended in time. Nothing was entered: try again."""

    retryable = True


class MessageRepeated(ThresherError):  # noqa: N818
    """The message was processed before, and the inbox was told to raise then."""


class RecordWithoutId(InvalidInput):
    """A record has no id by which a repeat could be told."""


class InboxRefused(ThresherError):  # noqa: N818
    """The inbox's table cannot be created, or must not be used."""
