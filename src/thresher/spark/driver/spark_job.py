"""An attempt as a Spark job in a job group of its own: run it, cancel it, and turn its end into an outcome."""

import contextlib
import re

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from thresher.spark.outcome import ErrorInfo, Fatal, Outcome, SparkLost, TaskLost, decode
from thresher.spark.task_spec import PackedTaskSpec
from thresher.spark.worker.task import Task

Counts = dict[str, int | float]

_SHOWN = 300


def run_job(context: SparkContext, group: str, description: str, spec: PackedTaskSpec) -> tuple[Outcome, Counts | None]:
    """Run the attempt to its end, in this thread. Errors of the attempt and of Spark are returned, never raised.

    Returns the outcome, and the final counts if the task could return them.
    """
    try:
        # With interruptOnCancel, a cancelled task's thread in the JVM would spin.
        context.setJobGroup(group, description, interruptOnCancel=False)
        [payload] = context.parallelize([0], 1).mapPartitions(Task(spec)).collect()
        return decode(payload)
    except Py4JJavaError as error:
        return _judged(str(error)), None
    except (Py4JError, OSError, EOFError, AssertionError, AttributeError) as error:
        # PySpark whose JVM is gone raises any of these, depending on the call that fails first.
        return SparkLost(why=f"Spark's JVM is gone ({type(error).__name__})"), None
    except Exception as error:  # noqa: BLE001 - such as a result that cannot be read
        return _judged(f"{type(error).__name__}: {error}"), None


def cancel_job(context: SparkContext, group: str) -> None:
    """Cancel the job if it runs. Errors do not matter: a JVM that is gone runs no job."""
    with contextlib.suppress(Exception):
        context.cancelJobGroup(group)


def _judged(text: str) -> Outcome:
    """Turn Spark's report of a failed job, whose task returned no outcome, into an outcome."""
    if "SparkContext was shut down" in text or "stopped SparkContext" in text:
        return SparkLost(why="the SparkContext was stopped")
    if re.search(r"No module named '(thresher|pyarrow)'", text):
        message = (
            "the workers' Python lacks thresher or pyarrow: give the executors the driver's environment "
            "(`thresher spark pack` makes an archive of it)"
        )
        return Fatal(error=ErrorInfo(kind="EnvironmentMissing", message=message, trace=text))
    if mismatch := re.search(r"\[PYTHON_VERSION_MISMATCH\][^\n]*", text):
        return Fatal(error=ErrorInfo(kind="PythonMismatch", message=mismatch.group(), trace=text))
    return TaskLost(why=_reason(text))


def _reason(text: str) -> str:
    """Return the most informative line of a Java report."""
    for pattern in (r"Python worker exited unexpectedly[^\n]*", r"ExecutorLostFailure[^\n]*", r"cancelled[^\n]*"):
        if found := re.search(pattern, text):
            return found.group()[:_SHOWN].rstrip(": ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(:?\s*[\w.]*(Exception|Error)\b)", line)]
    return (telling or lines or ["Spark gave no reason"])[-1 if telling else 0][:_SHOWN]
