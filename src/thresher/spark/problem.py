"""The engine's errors. Each class says whether a retry can help.

All take positional arguments only, so that they survive pickling on their way through Spark.
"""

from typing import ClassVar

from thresher.core.errors import InvalidInput, ThresherError


class EngineProblem(ThresherError):  # noqa: N818
    """Base of the engine's own errors."""


class PipelineInvalid(EngineProblem, InvalidInput):
    """The pipeline, its policy or its Spark options are invalid. Nothing was started."""


class SparkUnfit(EngineProblem, InvalidInput):
    """Spark's settings would break the engine. The message names them."""


class SparkFailed(EngineProblem):
    """Spark did not start."""


class EngineLost(EngineProblem):
    """Spark ended under the running shards, which end themselves. Start the program again."""

    retryable: ClassVar[bool] = True


class ShardsFailed(EngineProblem):
    """At least one shard failed for good. The message says which ones and why."""


class StopForced(EngineProblem):
    """The engine was killed or a start was stopped: open batches were not finished."""


class StepUnusable(EngineProblem):
    """A function of the pipeline cannot be imported, or cannot be called the way the engine calls it.

    Somebody has to mend the configuration.
    """

    exit_code: ClassVar[int] = 2


class WrongBatch(EngineProblem):
    """A function of the pipeline yielded something that is not a record batch."""


class FigureInvalid(EngineProblem):
    """A count, gauge or event of a pipeline cannot be reported."""


class InputLeft(EngineProblem):
    """The last function returned before its input ended. Going on would drop rows silently."""


class VersionMismatch(EngineProblem):
    """The task has another version of Thresher than the driver."""


class LineRefused(EngineProblem):
    """The driver refused the task's hello."""


class LineUnreachable(EngineProblem):
    """The task cannot connect to the driver."""

    retryable: ClassVar[bool] = True


class StepExited(EngineProblem):
    """A function of the pipeline called `sys.exit`."""

    retryable: ClassVar[bool] = True


class MemoryExceeded(EngineProblem):
    """The task's process grew beyond the policy's limit."""

    retryable: ClassVar[bool] = True
