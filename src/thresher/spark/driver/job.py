"""One attempt as a Spark job of its own: started, cancelled by its group, and its end read as an outcome."""

import contextlib
import re

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext

from thresher.spark.outcome import Fatal, Gone, Lost, Outcome, Trouble, decode
from thresher.spark.spec import Parcel
from thresher.spark.worker.task import Task

Counts = dict[str, int | float]

_SHOWN = 300


def run_job(context: SparkContext, group: str, description: str, parcel: Parcel) -> tuple[Outcome, Counts | None]:
    """Run the attempt to its end, in this thread. Never raises what an attempt or Spark does.

    Returns the outcome, and what was counted where the task lived to say it.
    """
    try:
        # Never interrupt: the JVM's thread would spin.
        context.setJobGroup(group, description, interruptOnCancel=False)
        [payload] = context.parallelize([0], 1).mapPartitions(Task(parcel)).collect()
        return decode(payload)
    except Py4JJavaError as error:
        return _judged(str(error)), None
    except (Py4JError, OSError, EOFError, AssertionError, AttributeError) as error:
        # Without its JVM, PySpark stumbles over whatever it touches first.
        return Gone(why=f"Spark's JVM is gone ({type(error).__name__})"), None
    except Exception as error:  # noqa: BLE001 - such as a result that cannot be read
        return _judged(f"{type(error).__name__}: {error}"), None


def cancel_job(context: SparkContext, group: str) -> None:
    """Cancel the job if it runs. A JVM that is gone has cancelled everything."""
    with contextlib.suppress(Exception):
        context.cancelJobGroup(group)


def _judged(text: str) -> Outcome:
    """Read Spark's report of a failed job: the task did not live to say it better."""
    if "SparkContext was shut down" in text or "stopped SparkContext" in text:
        return Gone(why="the SparkContext was stopped")
    if re.search(r"No module named '(thresher|pyarrow)'", text):
        message = (
            "the workers' Python lacks thresher or pyarrow: give the executors the driver's environment "
            "(`thresher spark pack` makes an archive of it)"
        )
        return Fatal(trouble=Trouble(kind="EnvironmentMissing", message=message, trace=text))
    if mismatch := re.search(r"\[PYTHON_VERSION_MISMATCH\][^\n]*", text):
        return Fatal(trouble=Trouble(kind="PythonMismatch", message=mismatch.group(), trace=text))
    return Lost(why=_reason(text))


def _reason(text: str) -> str:
    """Return the line of a Java report that says most."""
    for pattern in (r"Python worker exited unexpectedly[^\n]*", r"ExecutorLostFailure[^\n]*", r"cancelled[^\n]*"):
        if found := re.search(pattern, text):
            return found.group()[:_SHOWN].rstrip(": ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(:?\s*[\w.]*(Exception|Error)\b)", line)]
    return (telling or lines or ["Spark gave no reason"])[-1 if telling else 0][:_SHOWN]
