"""What can go wrong with a tail alone. Each class says by its type whether a retry can help."""

from thresher.core.errors import PipelineProblem


class LogLost(PipelineProblem):
    """A part of the log cannot be read any more: committed rows may be missing in Kafka, and somebody has to act."""


class OtherReader(PipelineProblem):
    """The outbox is read in the other way: by a relay that polls its table, or by a tail of the log."""
