"""The errors of an inbox."""

from thresher.core.errors import InvalidInput, ThresherError


class InboxBusy(ThresherError):  # noqa: N818
    """Another transaction processes the same message, and has not ended in time. Nothing was stored: try again."""

    retryable = True


class MessageRepeated(ThresherError):  # noqa: N818
    """The message was processed before, and the inbox has `OnRepeat.RAISE`."""


class RecordWithoutId(InvalidInput):
    """A record has no id, so a repeat could not be recognized."""


class InboxRefused(ThresherError):  # noqa: N818
    """The inbox's table cannot be created, or must not be used."""
