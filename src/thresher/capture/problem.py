"""What can go wrong with a capture, and with publishing to one."""

from thresher.core.errors import PipelineProblem, ThresherError, Trouble


class CaptureRefused(PipelineProblem):
    """A table, a column, an index or a right is missing. The text has the statement that mends it."""


class RecordsKeepFailing(PipelineProblem):
    """Too many records in a row cannot be applied: the mapping is wrong, not the records. None was set aside."""


class HandlerEndedTransaction(PipelineProblem):
    """A handler has ended capture's transaction: what was applied and how far may disagree from here on."""


class OffsetsMissing(Trouble):
    """A partition has no stored offset any more. The shard starts over, and finds out whether somebody has to act."""


class RewindInterrupted(ThresherError):  # noqa: N818
    """The capture went on while its topics were read again: the lock was lost. What was applied is right."""

    retryable = True


class RecordDead(ThresherError):  # noqa: N818
    """The record was published, and capture cannot apply it."""

    def __init__(self, where: str, kind: str, reason: str) -> None:
        super().__init__(where, kind, reason)
        self.where, self.kind, self.reason = where, kind, reason

    def __str__(self) -> str:
        return f"the record at {self.where} was published and cannot be applied ({self.kind}): {self.reason}"


class CaptureTimeout(ThresherError):  # noqa: N818
    """The record was published, and was not applied in time. The text says why, as far as that is known."""

    retryable = True


class NotPublished(ThresherError):  # noqa: N818
    """The record is not in the topic: the broker refused it, or the stored offsets could not be looked at before."""


class PublishUnknown(ThresherError):  # noqa: N818
    """The broker did not answer in time. The record may be in the topic, now or later."""

    retryable = True


def topic_changed(topic: str) -> str:
    """Say that a topic was made anew, and what to do."""
    return (
        f"the topic {topic} was deleted and created again: the stored offsets mean other records; 'thresher capture "
        "adopt' begins the new one at its first record"
    )
