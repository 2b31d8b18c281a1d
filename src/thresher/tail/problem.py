"""Errors that only a tail raises. The class of an error says whether a retry can help."""

from thresher.core.errors import PipelineProblem


class LogLost(PipelineProblem):
    """A part of the WAL cannot be read any more: committed rows may be missing in Kafka. An operator has to act."""


class OtherReader(PipelineProblem):
    """The outbox belongs to the other kind of reader: to a relay that polls its table, or to a tail of the WAL."""
