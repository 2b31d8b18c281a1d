"""The errors of a delivery. A retry can help against a `Trouble`; for any other, somebody has to act."""

from typing import ClassVar

from thresher.core.errors import PipelineProblem, Trouble


class ForeignProgress(PipelineProblem):
    """The progress topic, or the control row, belongs to another outbox."""


class Halted(PipelineProblem):
    """A row can never be sent, and the poison policy is `halt`."""


class TransformUnusable(PipelineProblem):
    """A transform cannot be imported: the configuration is wrong."""

    exit_code: ClassVar[int] = 2


class TransformKeepsFailing(Trouble):
    """A transform fails on many rows in a row, or on its whole first batch: its shard waits, and sets nothing aside."""
