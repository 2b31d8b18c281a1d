"""The errors of Thresher: one base, and each class says whether trying again can help.

Every error is built from positional arguments alone, so that it survives pickling on its way through Spark.
"""

import re
from typing import ClassVar


class ThresherError(Exception):
    """Base of every error Thresher raises. Its text says what happened, to what, and what to do."""

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class InvalidInput(ThresherError, ValueError):  # noqa: N818 - named for what the caller reads, as its subclasses are
    """Something the caller gave can never work; nothing was started and nothing was written."""

    exit_code: ClassVar[int] = 2


class PipelineProblem(ThresherError):  # noqa: N818
    """Base of what ends a pipeline. Unless a subclass says otherwise, somebody has to act: a restart does not help."""

    exit_code: ClassVar[int] = 4


class Trouble(PipelineProblem):
    """A problem that time may mend: the shard starts over and recovers."""

    retryable: ClassVar[bool] = True
    exit_code: ClassVar[int] = 1


class Superseded(PipelineProblem):
    """A newer leader has written its term: this process ends, and must not be started again by itself."""

    exit_code: ClassVar[int] = 3


def kind_of(error: BaseException) -> str:
    """Return an error's kind: one of a few, whatever happens. What is not ours is a bug, and told as such."""
    if not isinstance(error, ThresherError):
        return "unexpected"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


_SHOWN = 80


def shorten(value: object) -> str:
    """How a value is shown in an error: its repr, cut to a length that fits a log line."""
    try:
        # A slice first: the repr of a ten-megabyte value is not worth making.
        text = repr(value[: _SHOWN + 1]) if isinstance(value, str | bytes) else repr(value)
    except Exception as error:  # noqa: BLE001 - a caller's broken __repr__ must not hide the real problem
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
