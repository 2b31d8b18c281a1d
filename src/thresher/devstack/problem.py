"""What can go wrong with the local stack: each problem says what to do about it."""

from thresher.core.errors import InvalidInput, ThresherError


class StackProblem(ThresherError):  # noqa: N818
    """The stack cannot do what was asked; nothing half-made is left behind."""


class BadRequest(StackProblem, InvalidInput):
    """What was asked of the stack can never work."""


class PortTaken(StackProblem):
    """A port that was asked for belongs to another program."""


class JarMismatch(StackProblem):
    """A jar is not the one that the lock file names."""
