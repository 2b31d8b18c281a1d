"""What can go wrong with a broker. Each class says by its type whether a retry can help."""

from thresher.core.errors import PipelineProblem, Trouble


class BrokerRefused(PipelineProblem):
    """The broker answered and said no: credentials or permissions."""


class BrokerLost(Trouble):
    """The broker does not answer, or the producer was fenced."""
