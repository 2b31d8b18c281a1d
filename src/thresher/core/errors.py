"""The errors of Thresher: one base, and each class says whether a retry can help.

Every error is built from positional arguments alone, so that it survives pickling on its way through Spark.
"""

import re
from typing import ClassVar


class ThresherError(Exception):
    """Base of every error that Thresher raises. Its text says what happened, to what, and what to do."""

    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class InvalidInput(ThresherError, ValueError):  # noqa: N818 - named for what the caller reads, as its subclasses are
    """A value that the caller gave can never work. Nothing was started and nothing was written."""

    exit_code: ClassVar[int] = 2


class PipelineProblem(ThresherError):  # noqa: N818
    """Base of the errors that end a pipeline. Unless a subclass is retryable, a restart alone does not help."""

    exit_code: ClassVar[int] = 4


class Trouble(PipelineProblem):
    """A problem that may pass, such as a server that is down: the shard is restarted and recovers."""

    retryable: ClassVar[bool] = True
    exit_code: ClassVar[int] = 1


class Superseded(PipelineProblem):
    """A newer leader has written its term: this process ends, and must not be restarted automatically."""

    exit_code: ClassVar[int] = 3


def kind_of(error: BaseException) -> str:
    """Return an error's kind: the name of its class, or 'unexpected' for an error that is not Thresher's, a bug."""
    if not isinstance(error, ThresherError):
        return "unexpected"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


_SHOWN = 80


def shorten(value: object) -> str:
    """Return a value as errors show it: its repr, cut to a length that fits a log line."""
    try:
        # Sliced first, because the repr of a ten-megabyte value would be expensive.
        text = repr(value[: _SHOWN + 1]) if isinstance(value, str | bytes) else repr(value)
    except Exception as error:  # noqa: BLE001 - a caller's broken __repr__ must not hide the real problem
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
