"""What can go wrong with the engine. Each class says by its type whether trying again can help.

All are built from positional arguments alone, so that they survive the trip through Spark.
"""

from typing import ClassVar

from thresher.core.errors import InvalidInput, ThresherError


class EngineProblem(ThresherError):  # noqa: N818
    """Base of the engine's own errors."""


class PipelineInvalid(EngineProblem, InvalidInput):
    """The pipeline or its policy can never run as it was given; nothing was started."""


class SparkUnfit(EngineProblem, InvalidInput):
    """Spark is set up in a way that would break the engine; the message names the settings."""


class SparkFailed(EngineProblem):
    """Spark did not start."""


class EngineLost(EngineProblem):
    """Spark went away under the running shards. They end themselves; start the program again."""

    retryable: ClassVar[bool] = True


class ShardsFailed(EngineProblem):
    """At least one shard failed for good; the message says which and why."""


class StopForced(EngineProblem):
    """The engine was told to stop at once: open batches were not finished."""


class StepUnusable(EngineProblem):
    """A function of the pipeline cannot be imported, or cannot be called the way the engine calls it."""


class WrongBatch(EngineProblem):
    """A function of the pipeline returned or passed on something that is not a record batch."""


class FigureInvalid(EngineProblem):
    """A figure or an event of a pipeline cannot be reported as it is."""


class InputLeft(EngineProblem):
    """The last function returned before its input ended, so that rows would have been dropped silently."""


class VersionMismatch(EngineProblem):
    """The task runs another version of Thresher than the driver."""


class LineRefused(EngineProblem):
    """The driver does not know this task."""


class LineUnreachable(EngineProblem):
    """The task cannot reach the driver."""

    retryable: ClassVar[bool] = True


class StepExited(EngineProblem):
    """A function of the pipeline asked the process to exit."""

    retryable: ClassVar[bool] = True


class MemoryExceeded(EngineProblem):
    """The task's process grew beyond the policy's limit."""

    retryable: ClassVar[bool] = True
