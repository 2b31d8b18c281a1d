"""The error of an invalid configuration."""

from collections.abc import Sequence
from typing import ClassVar

from thresher.core.errors import InvalidInput, PipelineProblem


class ConfigurationInvalid(PipelineProblem, InvalidInput):
    """The configuration can never work; the message names every problem with its key."""

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        # The problems one by one, each with its key and the reason, if they have keys.
        self.problems = tuple(problems)
