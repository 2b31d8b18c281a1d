"""What can be wrong with a configuration."""

from typing import ClassVar

from thresher.core.errors import InvalidInput, PipelineProblem


class ConfigurationInvalid(PipelineProblem, InvalidInput):
    """The configuration can never work; the message names every problem with its key."""

    exit_code: ClassVar[int] = 2
