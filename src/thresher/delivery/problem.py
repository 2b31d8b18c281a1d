"""What can go wrong with a delivery. Each class says by its type whether a retry can help."""

from typing import ClassVar

from thresher.core.errors import PipelineProblem, Trouble


class ForeignProgress(PipelineProblem):
    """The progress topic, or the control row, belongs to another outbox."""


class Halted(PipelineProblem):
    """A row cannot be sent, and the policy is to halt."""


class TransformUnusable(PipelineProblem):
    """A transform cannot be imported: the configuration is wrong."""

    exit_code: ClassVar[int] = 2


class TransformKeepsFailing(Trouble):
    """A transform fails on row after row, or on its whole first batch: its shard waits, and sets nothing aside."""
