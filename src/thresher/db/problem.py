"""What can go wrong with a database. Each class says by its type whether a retry can help."""

from thresher.core.errors import PipelineProblem, Trouble


class DatabaseRefused(PipelineProblem):
    """The database answered and said no: password, permission, a missing table."""


class DatabaseLost(Trouble):
    """The database does not answer, or hung up."""
