"""The errors of queues. An unknown outcome has its own error class and is never reported as a failure."""

from typing import ClassVar

from thresher.core.errors import InvalidInput, PipelineProblem, ThresherError


class QueueClosed(ThresherError):  # noqa: N818
    """The producer, the consumer or its service was closed. A message that was in progress has been given back."""


class AlreadySettled(ThresherError):  # noqa: N818
    """The message was already acked, nacked or rejected: only the first of these counts."""


class MessageInvalid(InvalidInput):
    """The message can never be sent: it is too large, or a part of it has the wrong type. Nothing was sent."""


class SendUnknown(ThresherError):  # noqa: N818
    """The broker did not answer in time. The message may or may not be in the queue."""

    retryable: ClassVar[bool] = True


class SendRefused(ThresherError):  # noqa: N818
    """The broker refused the message: it is not in the queue."""


class MarkerUnknown(ThresherError):  # noqa: N818
    """The broker did not confirm an ack, nack or reject in time. If it was lost, the message is redelivered."""

    retryable: ClassVar[bool] = True


class OffsetsLost(PipelineProblem):
    """The consumer group had an offset and has none now. Beginning at the first record would repeat every message."""


class TopicsUnsuitable(PipelineProblem):
    """The topics of the queues are missing, or their configuration would lose messages."""


class DeadLetterRefused(PipelineProblem):
    """The broker refuses both the Start and the dead letter of a message."""
