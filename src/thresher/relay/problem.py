"""What can go wrong with a relay. Each class says by its type whether trying again can help, and how the command ends.

All are built from positional arguments alone, so that they survive the trip through Spark.
"""

from typing import ClassVar

from thresher.core.errors import InvalidInput, ThresherError


class RelayProblem(ThresherError):  # noqa: N818
    """Base of the relay's own errors. Without another word, somebody has to act: starting again does not help."""

    exit_code: ClassVar[int] = 4


class ConfigurationInvalid(RelayProblem, InvalidInput):
    """The configuration can never work; the message names every problem with its key."""

    exit_code: ClassVar[int] = 2


class Superseded(RelayProblem):
    """A newer leader has written its term: this one ends, and must not be started again by itself."""

    exit_code: ClassVar[int] = 3


class DatabaseRefused(RelayProblem):
    """The database answered and said no: password, permission, a missing table."""


class BrokerRefused(RelayProblem):
    """The broker answered and said no: credentials or permissions."""


class ForeignProgress(RelayProblem):
    """The progress topic, or the control row, belongs to another outbox."""


class Halted(RelayProblem):
    """A row cannot be sent, and the policy is to halt."""


class TransformUnusable(RelayProblem):
    """A transform cannot be imported."""


class Trouble(RelayProblem):
    """Something that time may mend: the shard starts over and recovers."""

    retryable: ClassVar[bool] = True
    exit_code: ClassVar[int] = 1


class DatabaseLost(Trouble):
    """The database does not answer, or hung up."""


class BrokerLost(Trouble):
    """The broker does not answer, or the producer was fenced."""


class TransformKeepsFailing(Trouble):
    """A transform fails on row after row: the relay waits, rather than set all of them aside."""
