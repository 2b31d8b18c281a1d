"""The errors of a database. The class of an error says whether a retry can help."""

from thresher.core.errors import PipelineProblem, Trouble


class DatabaseRefused(PipelineProblem):
    """The database refused: password, permission, a missing table. Somebody has to act."""


class DatabaseLost(Trouble):
    """The database does not answer, or closed the connection. A retry may help."""
