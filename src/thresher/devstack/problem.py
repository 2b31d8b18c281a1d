"""The errors of the local stack. Each message says what to do."""

from thresher.core.errors import InvalidInput, ThresherError


class StackProblem(ThresherError):  # noqa: N818
    """The stack cannot do what was requested. Nothing incomplete is left behind."""


class BadRequest(StackProblem, InvalidInput):
    """The request can never work."""


class PortTaken(StackProblem):
    """Another program uses a requested port."""


class JarMismatch(StackProblem):
    """A jar is not the one that the lock file names."""
