"""The errors of a capture, and of publishing to a captured topic."""

from thresher.core.errors import PipelineProblem, ThresherError, Trouble


class CaptureRefused(PipelineProblem):
    """A table, a column, an index or a right is missing. The message has the statement that fixes it."""


class RecordsKeepFailing(PipelineProblem):
    """Too many records of a topic in a row cannot be applied. The last batch was rolled back."""

    def __init__(self, topic: str, what: str) -> None:
        super().__init__(topic, what)
        self.topic, self.what = topic, what

    def __str__(self) -> str:
        return f"{self.what}. Correct the mapping or the table, or raise most_dead_in_a_row to go on without them"


class HandlerEndedTransaction(PipelineProblem):
    """A handler has ended capture's transaction: applied records and stored offsets may not agree any more."""


class OffsetsMissing(Trouble):
    """A partition's stored offset is gone. The shard restarts, and checks whether an operator has to act."""


class RewindInterrupted(ThresherError):  # noqa: N818
    """A rewind lost its lock, and the capture continued meanwhile. The rows that the rewind has written are correct."""

    retryable = True


class RecordDead(ThresherError):  # noqa: N818
    """The record was published, but capture cannot apply it."""

    def __init__(self, where: str, kind: str, reason: str) -> None:
        super().__init__(where, kind, reason)
        self.where, self.kind, self.reason = where, kind, reason

    def __str__(self) -> str:
        return f"the record at {self.where} was published, but cannot be applied ({self.kind}): {self.reason}"


class CaptureTimeout(ThresherError):  # noqa: N818
    """The record was published, but not applied in time. The message says why, as far as known."""

    retryable = True


class NotPublished(ThresherError):  # noqa: N818
    """The record is not in the topic: the broker refused it, or the stored offsets could not be read beforehand."""


class PublishUnknown(ThresherError):  # noqa: N818
    """The broker did not answer in time. The record may be in the topic, or appear there later."""

    retryable = True


def topic_changed(topic: str) -> str:
    """Return the message for a topic that was deleted and created again."""
    return (
        f"the topic {topic} was deleted and created again, and the stored offsets are those of the old one: run "
        "'thresher capture adopt' to begin the new one at its first record"
    )
